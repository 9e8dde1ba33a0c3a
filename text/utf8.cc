#include "text/utf8.h"

namespace tacc {
namespace {

// Bytes of the character that begins with `lead`; 0: none does.
size_t Length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xf0 && lead < 0xf5) return 4;
  return 0;
}

// Second bytes that would make an overlong form, a surrogate or a value above U+10FFFF.
bool GoodSecond(unsigned char lead, unsigned char second) {
  switch (lead) {
    case 0xe0:
      return second >= 0xa0;
    case 0xed:
      return second < 0xa0;
    case 0xf0:
      return second >= 0x90;
    case 0xf4:
      return second < 0x90;
    default:
      return true;
  }
}

}  // namespace

std::string ValidUtf8(const std::string& text, size_t max_bytes) {
  std::string valid;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    size_t length = Length(lead);
    bool good = length != 0 && i + length <= text.size();
    for (size_t k = 1; good && k < length; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + k]);
      good = (byte & 0xc0) == 0x80 && (k != 1 || GoodSecond(lead, byte));
    }
    if (!good) length = 1;
    if (valid.size() + length > max_bytes) break;
    if (good && lead != 0) {
      valid.append(text, i, length);
    } else {
      valid += lead == 0 ? ' ' : '?';
    }
    i += length;
  }
  return valid;
}

bool IsUtf8(const std::string& text) { return ValidUtf8(text, text.size()) == text; }

}  // namespace tacc
