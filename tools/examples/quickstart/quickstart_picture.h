#ifndef SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_PICTURE_H_
#define SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_PICTURE_H_

#include <string>
#include <vector>

#include "sherd/serialization/safetensors.h"
#include "sherd/tools/sherd/checkpoint/layout_picture.h"

namespace sherd {

// Which rank holds which part of a model at the three stages of the quickstart:
// scattered and saved by `save_ranks` ranks, loaded by `load_ranks`. Shows a
// tensor for each strategy by which the quickstart cuts.
LayoutPicture MakeQuickstartPicture(const std::string& model_name,
                                    const std::vector<SafetensorsEntry>& model,
                                    int save_ranks, int load_ranks);

}  // namespace sherd

#endif  // SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_PICTURE_H_
