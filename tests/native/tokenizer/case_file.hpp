// Reads what case_file.py writes: a vocabulary, and texts with the ids that the reference gives them.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bpe.hpp"

struct Sample {
  std::string_view text;
  std::vector<std::uint32_t> ids;
};

class CaseFile {
 public:
  explicit CaseFile(const char* path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    if (bytes_.empty()) throw std::runtime_error(std::string("can't read ") + path);
    pattern_ = number();
    ignore_merges_ = number();
    prepend_space_ = number();
    composed_ = number();
    tokens_.resize(number());
    for (auto& token : tokens_) token = {.text = text(), .id = number()};
    merges_.resize(number());
    for (std::uint32_t rank = 0; auto& merge : merges_) merge = {text(), text(), rank++};
    for (auto* added : {&raw_, &rewritten_}) {
      for (std::uint32_t left = number(); left > 0; --left) {
        std::string name(text());
        const std::uint32_t id = number(), flags = number();
        added->push_back({std::move(name), id, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0});
      }
    }
    samples_.resize(number());
    for (auto& sample : samples_) {
      sample.text = text();
      sample.ids.resize(number());
      for (auto& id : sample.ids) id = number();
    }
    if (at_ != bytes_.size()) throw std::runtime_error("the case file is longer than what it says");
  }

  // `plain`: with the scanner that every machine has.
  hostless::bpe::Bpe encoder(bool plain) const {
    using namespace hostless;
    const scan::Cut cut = cutter(plain);
    std::vector<std::uint32_t> special;
    for (const auto* added : {&raw_, &rewritten_}) {
      for (const auto& token : *added) {
        if (token.special) special.push_back(token.id);
      }
    }
    bpe::Rewriting how{.composed = composed_ != 0, .prepend_space = prepend_space_ != 0, .unify_space = !cut};
    return {bpe::VocabularyReader(tokens_, !cut).tables(merges_, ignore_merges_ != 0, special), bpe::AddedTokens(raw_),
            bpe::AddedTokens(rewritten_), how, cut};
  }

  // Null for a SentencePiece vocabulary.
  hostless::scan::Cut cutter(bool plain) const {
    if (pattern_ == kNoPattern) return nullptr;
    const auto pattern = static_cast<hostless::scan::Pattern>(pattern_);
    return plain ? hostless::scan::scalar_cutter(pattern) : hostless::scan::cutter(pattern);
  }

  const std::vector<Sample>& samples() const { return samples_; }

 private:
  static constexpr std::uint32_t kNoPattern = 0xFFFFFFFF;

  std::uint32_t number() {
    std::uint32_t value;
    std::memcpy(&value, text(sizeof value).data(), sizeof value);
    return value;
  }

  std::string_view text() { return text(number()); }

  std::string_view text(std::size_t size) {
    if (bytes_.size() - at_ < size) throw std::runtime_error("the case file is cut short");
    return std::string_view(bytes_).substr((at_ += size) - size, size);
  }

  std::string bytes_;
  std::size_t at_ = 0;
  std::uint32_t pattern_, ignore_merges_, prepend_space_, composed_;
  std::vector<hostless::bpe::TokenText> tokens_;
  std::vector<hostless::bpe::MergeText> merges_;
  std::vector<hostless::bpe::AddedToken> raw_, rewritten_;
  std::vector<Sample> samples_;
};
