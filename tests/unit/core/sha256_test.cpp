#include "core/sha256.h"

#include <catch2/catch.hpp>
#include <string>

namespace rueda::test::sha256_test {

namespace {

std::string hash_of(const std::string& text) {
  return hexadecimal(sha256(bytes_of(text)));
}
std::string mac_of(const std::string& key, const std::string& text) {
  return hexadecimal(hmac_sha256(bytes_of(key), bytes_of(text)));
}

}  // namespace

TEST_CASE("SHA-256 gives the digests of FIPS 180-4 and RFC 6234") {
  CHECK(hash_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hash_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hash_of(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  std::string eighty;  // RFC 6234, TEST4
  for (int i = 0; i < 10; ++i) {
    eighty += "0123456701234567012345670123456701234567012345670123456701234567";
  }
  CHECK(hash_of(eighty) == "594847328451bdfa85056225462cc1d867d877fb388df0ce35f25ab5562bfbb5");
}

// Padding changes at 55, 56, 63 and 64 bytes.
TEST_CASE("SHA-256 pads messages of any length") {
  CHECK(hash_of(std::string(55, 'a')) ==
        "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  CHECK(hash_of(std::string(56, 'a')) ==
        "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  CHECK(hash_of(std::string(63, 'a')) ==
        "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34");
  CHECK(hash_of(std::string(64, 'a')) ==
        "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

TEST_CASE("HMAC-SHA-256 gives the codes of RFC 4231") {
  CHECK(mac_of(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(mac_of("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(mac_of(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counted;
  for (char each = 1; each <= 25; ++each) counted += each;
  CHECK(mac_of(counted, std::string(50, '\xcd')) ==
        "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(
      mac_of(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(mac_of(std::string(131, '\xaa'),
               "This is a test using a larger than block-size key and a larger than block-size "
               "data. The key needs to be hashed before being used by the HMAC algorithm.") ==
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST_CASE("texts are equal only where every byte is") {
  const std::string text(33, 'x');
  CHECK(equal_in_constant_time(bytes_of(text), bytes_of(text)));
  CHECK(equal_in_constant_time({}, {}));
  CHECK_FALSE(equal_in_constant_time(bytes_of(text), bytes_of(text + "x")));
  CHECK_FALSE(equal_in_constant_time(bytes_of(text), {}));
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = static_cast<char>(other[i] ^ 0x80);
    CHECK_FALSE(equal_in_constant_time(bytes_of(text), bytes_of(other)));
  }
}

}  // namespace rueda::test::sha256_test
