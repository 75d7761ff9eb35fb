// libFuzzer: a vocabulary and a text from any bytes; loading refuses or makes an encoder that does what BPE is.
//
// The first bytes choose the pattern and switches, then come merges (two tokens by number; or, where the bytes say so,
// token texts that are garbage), then the text. Checked: the ids spell the text, all scanners cut alike, a text
// encoded again gives the same, and pieces of up to kObvious bytes give what merging in the obvious way gives.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "bpe.hpp"

namespace {

using namespace hostless;
using Ids = std::vector<std::uint32_t>;

constexpr std::size_t kObvious = 300;

void require(bool held, const char* what) {
  if (held) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

struct Input {
  const std::uint8_t* at;
  const std::uint8_t* end;

  std::uint8_t byte() { return at < end ? *at++ : 0; }
  std::string rest(std::size_t most) {
    const std::size_t size = std::min(most, static_cast<std::size_t>(end - at));
    at += size;
    return {reinterpret_cast<const char*>(at - size), size};
  }
};

struct Vocabulary {
  std::vector<std::string> texts, bytes;  // as a file writes them; what they spell
  std::vector<std::pair<std::uint32_t, std::uint32_t>> merges;

  void add(std::string text, std::string spelled) {
    texts.push_back(std::move(text));
    bytes.push_back(std::move(spelled));
  }

  std::vector<bpe::TokenText> tokens() const {
    std::vector<bpe::TokenText> made;
    for (std::uint32_t id = 0; id < texts.size(); ++id) made.push_back({texts[id], id});
    return made;
  }
};

Vocabulary read_vocabulary(Input& input) {
  Vocabulary made;
  for (unsigned byte = 0; byte < 256; ++byte) {
    made.add(bpe::Letters::all().letter(static_cast<std::uint8_t>(byte)), std::string(1, static_cast<char>(byte)));
  }
  for (unsigned left = input.byte() % 64; left > 0; --left) {
    const std::size_t first = input.byte() | (input.byte() & 1u) << 8, second = input.byte() | (input.byte() & 1u) << 8;
    if (first >= made.texts.size() || second >= made.texts.size()) continue;
    std::string text = made.texts[first] + made.texts[second];
    if (std::find(made.texts.begin(), made.texts.end(), text) == made.texts.end()) {
      made.add(std::move(text), made.bytes[first] + made.bytes[second]);
    }
    made.merges.emplace_back(first, second);
  }
  if (input.byte() == 255) made.add(input.rest(input.byte()), "");
  return made;
}

// Any bytes as UTF-8: as they are, or each as a character.
std::string read_text(Input& input) {
  static constexpr std::uint32_t kHigh[] = {0xE9,    0x17F, 0x301,  0x4E2D, 0x30AB, 0x3002,
                                            0x1F600, 0xA0,  0x2028, 0x663,  0x416};
  std::string bytes = input.rest(1 << 16), text;
  if (scan::valid_utf8(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size())) return bytes;
  for (const char c : bytes) {
    const auto byte = static_cast<std::uint8_t>(c);
    const std::uint32_t code = byte < 0x80 ? byte : kHigh[byte % std::size(kHigh)];
    if (code < 0x80) {
      text += static_cast<char>(code);
      continue;
    }
    const unsigned size = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    text += static_cast<char>((0xF00u >> size & 0xFF) | code >> 6 * (size - 1));
    for (unsigned i = size - 1; i > 0; --i) text += static_cast<char>(0x80 | (code >> 6 * (i - 1) & 0x3F));
  }
  return text;
}

// The definition: of all neighbours that merge, the earliest in the list, of equal ones the leftmost, until none does.
Ids merge_obviously(const Vocabulary& vocabulary,
                    const std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t>& ranks,
                    std::string_view piece) {
  Ids ids;
  for (const char c : piece) ids.push_back(static_cast<std::uint8_t>(c));
  for (;;) {
    std::size_t best = ranks.size() + vocabulary.merges.size() + 1, where = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found != ranks.end() && found->second < best) best = found->second, where = i;
    }
    if (best > vocabulary.merges.size()) return ids;
    const std::string spelled = vocabulary.bytes[ids[where]] + vocabulary.bytes[ids[where + 1]];
    const auto token = std::find(vocabulary.bytes.begin(), vocabulary.bytes.end(), spelled);
    ids[where] = static_cast<std::uint32_t>(token - vocabulary.bytes.begin());
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
}

void compare_pieces(const Vocabulary& vocabulary, scan::Cut cut, const std::string& text, const Ids& ids) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> ranks;
  for (std::size_t rank = 0; rank < vocabulary.merges.size(); ++rank) ranks[vocabulary.merges[rank]] = rank;
  const auto* data = reinterpret_cast<const std::uint8_t*>(text.data());
  auto id = ids.begin();
  std::uint32_t end = 0;
  for (std::size_t begin = 0; cut(data, text.size(), begin, &end, 1) == 1; begin = end) {
    const std::string_view piece = std::string_view(text).substr(begin, end - begin);
    std::size_t spelled = 0;
    const auto first = id;
    for (; spelled < piece.size() && id != ids.end(); ++id) spelled += vocabulary.bytes[*id].size();
    require(spelled == piece.size(), "a token crosses the end of a piece");
    if (piece.size() <= kObvious) require(Ids(first, id) == merge_obviously(vocabulary, ranks, piece), "other ids");
  }
}

Ids cut(scan::Cut cutter, const std::string& text, std::size_t capacity) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(text.data());
  Ids ends, some(capacity);
  const auto begin = [&] { return ends.empty() ? 0 : ends.back(); };
  while (const std::size_t count = cutter(data, text.size(), begin(), some.data(), capacity)) {
    ends.insert(ends.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count));
  }
  return ends;
}

Ids encode(const bpe::Bpe& encoder, const std::string& text, bool trusting, bpe::Arena& arena) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(text.data());
  const std::size_t count = encoder.encode(data, text.size(), trusting, arena);
  return {arena.ids.data(), arena.ids.data() + count};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input{data, data + size};
  const auto pattern = static_cast<scan::Pattern>(input.byte() % 6);
  const std::uint8_t switches = input.byte();
  const bool ignore_merges = switches & 1, added = switches & 2, sentencepiece = switches & 4;
  const bool composed = switches & 8;
  const Vocabulary vocabulary = read_vocabulary(input);
  std::vector<bpe::AddedToken> found;
  const auto next = static_cast<std::uint32_t>(vocabulary.texts.size());
  if (added) found = {{"<|end|>", next, true, false, false}, {"<a>", next + 1, false, true, true}};
  const std::string text = read_text(input);
  require(cut(scan::cutter(pattern), text, 64 + switches) == cut(scan::scalar_cutter(pattern), text, 1),
          "cut otherwise");
  try {
    std::vector<bpe::MergeText> merges;
    for (std::uint32_t rank = 0; auto [left, right] : vocabulary.merges) {
      merges.push_back({vocabulary.texts[left], vocabulary.texts[right], rank++});
    }
    const bpe::Bpe encoder(bpe::VocabularyReader(vocabulary.tokens(), sentencepiece).tables(merges, ignore_merges, {}),
                           bpe::AddedTokens(found), bpe::AddedTokens({}),
                           {.composed = composed, .prepend_space = false, .unify_space = sentencepiece},
                           sentencepiece ? nullptr : scan::cutter(pattern));
    bpe::Arena arena;
    const Ids ids = encode(encoder, text, added, arena);
    require(ids == encode(encoder, text, added, arena), "the second time differs");
    const bool plain = !added && !sentencepiece && !ignore_merges && !composed;
    if (plain) compare_pieces(vocabulary, scan::scalar_cutter(pattern), text, ids);
  } catch (const bpe::Unsupported&) {
  }
  return 0;
}
