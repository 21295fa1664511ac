#include "sherd/core/base/printable_text.h"

#include <string>

#include "gtest/gtest.h"

namespace sherd {
namespace {

TEST(PrintableTextTest, TextStaysAsItIs) {
  for (const char* text :
       {"", "plain\ttext\n", "äöü → 日本 🙂", "\\x41 <&>]]>"}) {
    EXPECT_EQ(PrintableText(text), text);
  }
}

TEST(PrintableTextTest, ColoursAreLeftOut) {
  EXPECT_EQ(PrintableText("\x1b[31mred\x1b[0m \x1b[1;32mgreen\x1b[m\x1b[2K."),
            "red green.");
}

TEST(PrintableTextTest, CharactersThatXmlCannotHoldAreWrittenInHex) {
  EXPECT_EQ(PrintableText(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(PrintableText("\x01\x08\x7f\r."), "\\x01\\x08\\x7f\\x0d.");
  EXPECT_EQ(PrintableText("\xef\xbf\xbe"), "\\xef\\xbf\\xbe");
  EXPECT_EQ(PrintableText("\x1b"), "\\x1b");
  EXPECT_EQ(PrintableText("\x1b["), "\\x1b[");
  EXPECT_EQ(PrintableText("line\r\n"), "line\n");
}

TEST(PrintableTextTest, BytesThatAreNotUtf8AreWrittenInHex) {
  struct Case {
    const char* bytes;
    const char* printable;
  };
  for (const Case& c : {Case{"\xff", "\\xff"},
                        {"\x80", "\\x80"},
                        {"\xc3", "\\xc3"},
                        {"\xc3(", "\\xc3("},
                        // Longer than needed.
                        {"\xc0\x80", "\\xc0\\x80"},
                        {"\xe0\x80\x80", "\\xe0\\x80\\x80"},
                        {"\xf0\x80\x80\x80", "\\xf0\\x80\\x80\\x80"},
                        // Half of a pair of UTF-16.
                        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},
                        // Beyond Unicode.
                        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
                        {"\xf0\x9f\x99", "\\xf0\\x9f\\x99"}}) {
    EXPECT_EQ(PrintableText(c.bytes), c.printable);
  }
}

TEST(PrintableTextTest, ALineHasNoBreaks) {
  EXPECT_EQ(PrintableLine("a\tb\nc\r\nd"), "a\\tb\\nc\\nd");
  EXPECT_EQ(Quoted("wte\x1b[2J.\n\a\"weight"), "\"wte.\\n\\x07\"weight\"");
}

}  // namespace
}  // namespace sherd
