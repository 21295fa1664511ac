#ifndef SHERD_TESTING_KITS_CONTRACT_CARDS_H_
#define SHERD_TESTING_KITS_CONTRACT_CARDS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sherd::testing {

// A call that ends in an error which its card documents.
struct DocumentedError {
  std::string what;
  absl::StatusCode code;
  // Null: too dear to show here; `what` says where it is shown.
  std::function<absl::Status()> call;
};

// The errors of one function, or of several with one card.
struct CardOfErrors {
  std::string function;
  // Comments that say its codes, each by a phrase that stands in a line of that
  // comment only: "path of the header: phrase".
  std::vector<std::string> comments;
  std::vector<DocumentedError> errors;
};

// Expects of each card that the comments document the codes of `errors` and no
// others, and that each call ends in its code. A code is documented by a line
// that begins with it:
//
//   //   kInvalidArgument     …
//   //   kNotFound, kDataLoss
//
// Files are data of the test.
void ExpectCardsHold(const std::vector<CardOfErrors>& cards);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_KITS_CONTRACT_CARDS_H_
