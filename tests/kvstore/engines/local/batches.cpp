// Batches of blocks against a device in memory that is as difficult as the kernel may be: transfers end in any order,
// in parts, after interruptions, with errors, at an end of the file that comes too early. Built under sanitizers.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>

#include "reading.hpp"
#include "writing.hpp"

using namespace hostless;

#define CHECK(what)                                          \
  do {                                                       \
    if (!(what)) {                                           \
      std::printf("%s:%d: %s\n", __FILE__, __LINE__, #what); \
      std::exit(1);                                          \
    }                                                        \
  } while (0)

namespace {

using Bytes = std::vector<uint8_t>;

struct Disk {
  Bytes bytes;
  double error_share = 0;  // of transfers that fail with EIO
  std::mt19937_64 random;
};

class Difficult final : public Device {
 public:
  Difficult(Disk& disk, size_t most) : disk_(disk), most_(most) {}

  void submit(Transfer& transfer) override {
    waiting_.push_back(&transfer);
    CHECK(waiting_.size() <= most_);
  }
  void flush() override {}

  Transfer* wait() override {
    CHECK(!waiting_.empty());
    for (;;) {
      size_t at = disk_.random() % waiting_.size();
      Transfer* transfer = waiting_[at];
      if (!transfer->settle(attempt(*transfer))) continue;
      waiting_.erase(waiting_.begin() + static_cast<long>(at));
      return transfer;
    }
  }

 private:
  int64_t attempt(Transfer& t) {
    switch (disk_.random() % 8) {
      case 0: return -EINTR;
      case 1: return -EAGAIN;
      default: break;
    }
    if (std::uniform_real_distribution<>()(disk_.random) < disk_.error_share) return -EIO;
    size_t left = t.bytes - t.done, at = t.offset + t.done, count = 0;
    if (disk_.random() % 2 && left > 512) left = (1 + disk_.random() % (left / 512)) * 512;
    if (at >= disk_.bytes.size()) return 0;
    left = std::min(left, disk_.bytes.size() - at);
    for (int part = 0, parts = t.left(); part < parts && count < left; ++part) {
      auto* memory = static_cast<uint8_t*>(t.rest[part].iov_base);
      size_t bytes = std::min(left - count, t.rest[part].iov_len);
      if (t.action == Action::read)
        std::memcpy(memory, &disk_.bytes[at + count], bytes);
      else
        std::memcpy(&disk_.bytes[at + count], memory, bytes);
      count += bytes;
    }
    return static_cast<int64_t>(left);
  }

  Disk& disk_;
  size_t most_;
  std::vector<Transfer*> waiting_;
};

struct Block {
  uint64_t offset;
  Bytes head, content;
  uint32_t crc;
};

// Memory that begins on a page, or just beside one.
struct Memory {
  Memory(size_t bytes, bool aligned) : all(bytes + 2 * kPage) {
    auto begin = reinterpret_cast<uintptr_t>(all.data());
    data = all.data() + (round_up(begin, kPage) - begin) + (aligned ? 0 : 24);
  }
  Bytes all;
  uint8_t* data;
};

void one_round(uint64_t seed) {
  std::mt19937_64 random(seed);
  unsigned depth = 1 + random() % 6;
  Disk disk;
  disk.random.seed(seed + 1);
  std::vector<Block> blocks;
  uint64_t end = kPage;
  size_t lengths[] = {1, 511, 4096, 4097, 70'000, 262'144, 262'145, 1 << 20, (4 << 20) + 12'288, 5'000'001};
  for (size_t count = 1 + random() % 9; blocks.size() < count;) {
    Block block;
    size_t length = lengths[random() % std::size(lengths)];
    block.offset = end;
    block.content.resize(length);
    for (size_t at = 0; at < length; at += 97) block.content[at] = static_cast<uint8_t>(random());
    block.crc = crc32c(block.content.data(), length);
    block.head.assign(kHead, static_cast<uint8_t>(blocks.size() + 1));
    uint32_t word = static_cast<uint32_t>(length);
    std::memcpy(&block.head[kLengthAt], &word, 4);
    end += kPage + round_up(length, kPage);
    blocks.push_back(std::move(block));
  }
  disk.bytes.assign(end, 0xcc);

  Channel channel(std::make_unique<Difficult>(disk, 4 * depth), depth);
  bool failing = seed % 3 == 1;
  disk.error_share = failing ? 0.05 : 0;
  std::vector<WriteWork> writes;
  std::vector<std::unique_ptr<Memory>> sources;
  size_t spoilt = random() % (2 * blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    auto& block = blocks[i];
    auto& source = *sources.emplace_back(std::make_unique<Memory>(block.content.size(), random() % 2));
    std::memcpy(source.data, block.content.data(), block.content.size());
    writes.push_back(
        {{}, block.offset, block.head.data(), source.data, block.content.size(), block.crc ^ (i == spoilt), done_well});
  }
  Writing(channel, {}, writes).run();
  for (size_t i = 0; i < blocks.size(); ++i) {
    int outcome = writes[i].outcome;
    CHECK(outcome == done_well || outcome == EIO || outcome == wrong_bytes);
    CHECK(failing || outcome == (i == spoilt ? wrong_bytes : done_well));
    CHECK(i != spoilt || outcome != done_well);
  }

  disk.error_share = seed % 3 == 2 ? 0.05 : 0;
  if (seed % 5 == 4) disk.bytes.resize(disk.bytes.size() - 512 * (random() % 20));
  std::vector<ReadWork> reads;
  std::vector<std::unique_ptr<Memory>> targets;
  std::vector<size_t> which;
  for (size_t n = 0; n < 3 * blocks.size(); ++n) {
    size_t i = random() % blocks.size(), length = blocks[i].content.size();
    uint64_t begin = random() % 3 ? 0 : random() % length;
    size_t bytes = random() % 3 ? length - begin : 1 + random() % (length - begin);
    if (random() % 2) begin = begin / kPage * kPage, bytes = std::max<size_t>(1, bytes / kPage * kPage);
    auto& target = *targets.emplace_back(std::make_unique<Memory>(bytes, random() % 3));
    reads.push_back({{}, blocks[i].offset, blocks[i].head.data(), begin, bytes, target.data, done_well});
    which.push_back(i);
  }
  size_t flipped = seed % 7 == 6 ? random() % disk.bytes.size() : disk.bytes.size();
  if (flipped != disk.bytes.size()) disk.bytes[flipped] ^= 1;
  Reading(channel, {}, reads).run();
  size_t right = 0;
  for (size_t n = 0; n < reads.size(); ++n) {
    const ReadWork& read = reads[n];
    bool same = std::memcmp(read.into, blocks[which[n]].content.data() + read.begin, read.bytes) == 0;
    CHECK(read.outcome != done_well || same);  // never a wrong byte
    CHECK(read.outcome != done_well || writes[which[n]].outcome != wrong_bytes);
    if (!failing && disk.error_share == 0 && flipped == disk.bytes.size() && disk.bytes.size() == end)
      CHECK((read.outcome == done_well) == (writes[which[n]].outcome == done_well));
    right += read.outcome == done_well;
  }
  CHECK(channel.arena().pages.size() == kPagesEach * depth && channel.arena().bounces.size() == depth);
  static size_t total = 0;
  total += right;
  if (seed % 40 == 39) std::printf("%zu slices right\n", total);
}

}  // namespace

int main(int, char** arguments) {
  for (uint64_t seed = 0, rounds = std::strtoull(arguments[1], nullptr, 10); seed < rounds; ++seed) one_round(seed);
}
