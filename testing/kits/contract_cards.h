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
  // Null: too expensive to show here; `what` names the test that does.
  std::function<absl::Status()> call;
};

// The errors of one function, or of several with one card.
struct CardOfErrors {
  std::string function;
  // The comments that document its codes, each by a phrase that occurs in one
  // line of that comment only: "path of the header: phrase".
  std::vector<std::string> comments;
  std::vector<DocumentedError> errors;
};

// Expects that the comments of each card document the codes of `errors` and no
// others, and that each call returns its code. A code is documented by a line
// that begins with it:
//
//   //   kInvalidArgument     …
//   //   kNotFound, kDataLoss
//
// Files are data of the test.
void ExpectCardsHold(const std::vector<CardOfErrors>& cards);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_KITS_CONTRACT_CARDS_H_
