// One-sided operations over libibverbs, without Python in between: what is posted, waited for and copied for a batch.
#pragma once

#include <infiniband/verbs.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

namespace hostless {

constexpr uint32_t kDepth = 512;         // work requests of one doorbell, at most
constexpr uint32_t kInlineBytes = 64;    // writes up to this length are copied into the request, if the device can
constexpr uint8_t kPort = 1;
constexpr uint64_t kWord = 8;
constexpr int64_t kSpinNs = 20'000;      // so long a completion is looked for at once: a NIC answers by then
constexpr int64_t kYieldNs = 300'000;    // so long without sleeping
constexpr int64_t kRoundNs = 30'000'000'000;  // of one doorbell, at most; a dead network fails much sooner

// Besides ibv_wc_status, what a run may end with.
constexpr int kLate = -1;
constexpr int kLost = -2;
constexpr int kRefused = -3;

template <class T>
T* made(T* thing, const char* what) {
  if (thing == nullptr) throw std::system_error(errno, std::generic_category(), what);
  return thing;
}

inline void must(int error, const char* what) {
  if (error != 0) throw std::system_error(error > 0 ? error : errno, std::generic_category(), what);
}

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// An open device with its protection domain.
class VerbsDevice {
 public:
  explicit VerbsDevice(const std::string& name) {
    int count = 0;
    ibv_device** devices = made(ibv_get_device_list(&count), "no list of RDMA devices");
    for (int i = 0; i < count; ++i)
      if (name == ibv_get_device_name(devices[i])) context = ibv_open_device(devices[i]);
    ibv_free_device_list(devices);
    if (context == nullptr) throw std::system_error(ENODEV, std::generic_category(), name);
    domain = ibv_alloc_pd(context);
    ibv_device_attr limits{};
    if (domain == nullptr || ibv_query_port(context, kPort, &port) != 0 || ibv_query_device(context, &limits) != 0) {
      const int error = errno;
      close();
      throw std::system_error(error, std::generic_category(), name);
    }
    reads = static_cast<uint32_t>(limits.max_qp_rd_atom);
  }
  ~VerbsDevice() { close(); }
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;
  ibv_port_attr port{};
  uint32_t reads = 0;

 private:
  void close() {
    if (domain != nullptr) ibv_dealloc_pd(domain);
    if (context != nullptr) ibv_close_device(context);
  }
};

// Registered memory. It keeps the device open.
class VerbsMemory {
 public:
  VerbsMemory(std::shared_ptr<VerbsDevice> device, ibv_mr* region) : device_(std::move(device)), region_(region) {
    local_key = region->lkey, remote_key = region->rkey;
  }
  ~VerbsMemory() { close(); }
  VerbsMemory(const VerbsMemory&) = delete;
  VerbsMemory& operator=(const VerbsMemory&) = delete;

  void close() {
    if (region_ != nullptr) ibv_dereg_mr(region_);
    region_ = nullptr;
  }

  uint32_t local_key = 0, remote_key = 0;

 private:
  std::shared_ptr<VerbsDevice> device_;
  ibv_mr* region_;
};

enum class VerbsKind : uint8_t { read = 1, write = 2, swap = 3, add = 4 };

// One operation: `length` bytes at `data`, or an atomic, which leaves the word found at `data`.
struct VerbsOperation {
  VerbsKind kind;
  uint64_t offset;
  uint8_t* data;
  uint64_t length;
  uint64_t expected = 0, desired = 0;  // of a swap; an add adds `expected`
};

// One end of a reliable connection, with the registered memory that everything of this end moves through.
class VerbsPair {
 public:
  VerbsPair(std::shared_ptr<VerbsDevice> device, int access, size_t staging_bytes)
      : device_(std::move(device)), access_(access), staging_bytes_(staging_bytes) {
    try {
      queue_ = made(ibv_create_cq(device_->context, kDepth + 1, nullptr, nullptr, 0), "completion queue");
      ibv_qp_init_attr wanted{};
      wanted.send_cq = wanted.recv_cq = queue_, wanted.qp_type = IBV_QPT_RC;
      wanted.cap = {.max_send_wr = kDepth,
                    .max_recv_wr = 1,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = kInlineBytes};
      pair_ = made(ibv_create_qp(device_->domain, &wanted), "queue pair");
      inline_ = std::min(wanted.cap.max_inline_data, kInlineBytes);
      if (staging_bytes_ != 0) {
        must(posix_memalign(reinterpret_cast<void**>(&staging_), 4096, staging_bytes_), "staging memory");
        std::memset(staging_, 0, staging_bytes_);
        region_ = made(ibv_reg_mr(device_->domain, staging_, staging_bytes_, IBV_ACCESS_LOCAL_WRITE), "staging memory");
        requests_.resize(kDepth), sources_.resize(kDepth), pieces_.resize(kDepth);
      }
    } catch (...) {
      close();
      throw;
    }
  }
  ~VerbsPair() { close(); }
  VerbsPair(const VerbsPair&) = delete;
  VerbsPair& operator=(const VerbsPair&) = delete;

  uint32_t number() const { return pair_ == nullptr ? 0 : pair_->qp_num; }

  // `address` says where the other end is (ah_attr), `attributes` its numbers and this end's patience.
  void connect(ibv_qp_attr attributes) {
    ibv_qp_attr step{};
    step.qp_state = IBV_QPS_INIT, step.port_num = kPort, step.qp_access_flags = static_cast<unsigned>(access_);
    must(ibv_modify_qp(pair_, &step, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "to INIT");
    attributes.qp_state = IBV_QPS_RTR;
    must(ibv_modify_qp(pair_, &attributes,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
         "to RTR");
    attributes.qp_state = IBV_QPS_RTS;
    must(ibv_modify_qp(pair_, &attributes,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC),
         "to RTS");
  }

  // Runs operations in order on the `length` bytes at `remote`; 0, an ibv_wc_status, or one of the above.
  int run(std::vector<VerbsOperation>& operations, uint64_t remote, uint64_t length, uint32_t key) {
    if (pair_ == nullptr) return kLost;
    size_t at = 0;
    uint64_t done = 0;
    while (at < operations.size()) {
      uint32_t count = 0;
      size_t staged = 0;
      while (at < operations.size() && count < kDepth) {
        VerbsOperation& operation = operations[at];
        const uint64_t rest = operation.length - done, room = staging_bytes_ - staged;
        if (rest != 0) {
          if (room < std::min(rest, kWord) + 2 * kWord) break;
          pieces_[count] = piece(operation, done, room, staged, length);
          put(count, pieces_[count], operation, remote, key);
          done += pieces_[count].taken, staged += (pieces_[count].moved + kWord - 1) / kWord * kWord;
          ++count;
        }
        if (done == operation.length) ++at, done = 0;
      }
      if (const int status = count == 0 ? 0 : ring(count); status != 0) return status;
      for (uint32_t i = 0; i < count; ++i)
        if (pieces_[i].kind != VerbsKind::write)
          std::memcpy(pieces_[i].data, staging_ + pieces_[i].staged + pieces_[i].lead, pieces_[i].taken);
    }
    return 0;
  }

  // Ends a run that waits, from another thread, and all later ones.
  void lose() { lost_.store(true); }

  void close() {
    if (pair_ != nullptr) ibv_destroy_qp(pair_);
    if (queue_ != nullptr) ibv_destroy_cq(queue_);
    if (region_ != nullptr) ibv_dereg_mr(region_);
    std::free(staging_);
    pair_ = nullptr, queue_ = nullptr, region_ = nullptr, staging_ = nullptr;
  }

 private:
  // Of an operation: `taken` bytes at `data`. A read brings `lead` bytes before them and some behind, so that it takes
  // whole words: a device reads memory by words, and a part of one would be torn from the rest.
  struct Piece {
    VerbsKind kind;
    uint8_t* data;
    uint64_t offset, taken, moved;
    size_t staged, lead;
  };

  static Piece piece(const VerbsOperation& operation, uint64_t done, uint64_t room, size_t staged, uint64_t length) {
    const uint64_t at = operation.offset + done, rest = operation.length - done;
    Piece p{operation.kind, operation.data + done, at, rest, rest, staged, 0};
    if (operation.kind == VerbsKind::write) {
      p.taken = p.moved = rest <= room ? rest : room / kWord * kWord;
    } else if (operation.kind == VerbsKind::read) {
      p.taken = std::min(rest, (room - 2 * kWord) / kWord * kWord);
      p.lead = at % kWord, p.offset = at - p.lead;
      const uint64_t whole = (p.lead + p.taken + kWord - 1) / kWord * kWord;
      p.moved = std::min(whole, length - p.offset);
    }
    return p;
  }

  void put(uint32_t i, const Piece& p, const VerbsOperation& operation, uint64_t remote, uint32_t key) {
    uint8_t* local = staging_ + p.staged;
    sources_[i] = {reinterpret_cast<uintptr_t>(local), static_cast<uint32_t>(p.moved), region_->lkey};
    ibv_send_wr& request = requests_[i];
    request = {};
    request.wr_id = ++posted_;
    request.sg_list = &sources_[i], request.num_sge = 1;
    const uint64_t place = remote + p.offset;
    // A later request of another kind may overtake a read or a swap, unless it is told to wait for it.
    if (i > 0 && pieces_[i - 1].kind != p.kind && pieces_[i - 1].kind != VerbsKind::write)
      request.send_flags = IBV_SEND_FENCE;
    if (p.kind == VerbsKind::swap) {
      request.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
      request.wr.atomic = {place, operation.expected, operation.desired, key};
      return;
    }
    if (p.kind == VerbsKind::add) {
      request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      request.wr.atomic = {place, operation.expected, 0, key};
      return;
    }
    request.opcode = p.kind == VerbsKind::write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    request.wr.rdma = {place, key};
    if (p.kind == VerbsKind::write) {
      std::memcpy(local, p.data, p.moved);
      if (p.moved <= inline_) request.send_flags |= IBV_SEND_INLINE;
    }
  }

  // One doorbell and one completion for the first `count` requests.
  int ring(uint32_t count) {
    for (uint32_t i = 0; i + 1 < count; ++i) requests_[i].next = &requests_[i + 1];
    requests_[count - 1].send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(pair_, requests_.data(), &bad) != 0) return kRefused;
    const int64_t begun = now_ns();
    timespec pause{0, 20'000};
    while (true) {
      ibv_wc found{};
      const int polled = ibv_poll_cq(queue_, 1, &found);
      if (polled < 0) return kRefused;
      if (polled > 0) {
        if (found.status != IBV_WC_SUCCESS) return found.status;
        if (found.wr_id == posted_) return 0;
        continue;
      }
      if (lost_.load(std::memory_order_relaxed)) return kLost;
      const int64_t waited = now_ns() - begun;
      if (waited > kRoundNs) return kLate;
      if (waited < kSpinNs) continue;
      if (waited < kYieldNs) {
        sched_yield();
      } else {
        nanosleep(&pause, nullptr);
        pause.tv_nsec = std::min(pause.tv_nsec * 5 / 4, 500'000L);
      }
    }
  }

  std::shared_ptr<VerbsDevice> device_;
  int access_;
  size_t staging_bytes_;
  uint32_t inline_ = 0;
  ibv_cq* queue_ = nullptr;
  ibv_qp* pair_ = nullptr;
  ibv_mr* region_ = nullptr;
  uint8_t* staging_ = nullptr;
  uint64_t posted_ = 0;
  std::atomic<bool> lost_{false};
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> sources_;
  std::vector<Piece> pieces_;
};

}  // namespace hostless
