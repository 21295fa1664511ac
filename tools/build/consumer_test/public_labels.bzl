"""Targets that depend on labels of @sherd, and of which nothing is built."""

def _dependent_impl(_ctx):
    # No files: Bazel analyses the dependency, visibility too, and compiles nothing.
    return []

_dependent = rule(
    implementation = _dependent_impl,
    attrs = {"dep": attr.label(allow_files = True)},
)

def public_labels(name, labels):
    """Depends on each label in a target of its own: NAME/PACKAGE/TARGET.

    Bazel skips those that need what is not installed, and analyses the others.

    Args:
      name: what the targets' names begin with.
      labels: as @sherd//PACKAGE:TARGET.
    """
    for label in labels:
        place = label.partition("//")[2].replace(":", "/")
        _dependent(
            name = "%s/%s" % (name, place.lstrip("/")),
            testonly = True,
            dep = label,
        )
