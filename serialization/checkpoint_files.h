#ifndef SHERD_SERIALIZATION_CHECKPOINT_FILES_H_
#define SHERD_SERIALIZATION_CHECKPOINT_FILES_H_

#include "sherd/core/base/file.h"

namespace sherd {

// The files of checkpoints, wherever they are: what all functions of this
// package use that are given no FileSystem. A path that begins with a scheme
// and ':' lies in that store, where "scheme:location" is the directory and
// "scheme:location/name" a file; "file:PATH" is PATH; every other path is one
// of FileSystem::Posix(). So a directory "objects:x" is reached as
// "./objects:x". A path with an unknown scheme and "://" is refused
// (kInvalidArgument).
//
// In a store a directory is flat and needs not be created. Files that are not
// written in place are all that works:
//   - Create, then Close, or the rename: the file is there from then on, whole,
//     and durable if it was synced after the last write. Later writes to a
//     short one replace it (renewals of a lease).
//   - Only names that end in ".tmp" can be renamed, and only to names that end
//     in ".sherd", which nothing else creates. Others: kInvalidArgument.
//   - A path whose last part ends in ".sherd", ".tmp", ".pin" or ".safetensors"
//     is that of a file, all others those of directories.
// See store/store_files.h. Lives forever; passes the fault points "file/…" of
// fault_point.h, in stores too.
FileSystem& CheckpointFiles();

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_FILES_H_
