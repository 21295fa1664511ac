"""Step 2 of 2 for WORKSPACE users: whatever must be loaded from step 1."""

def sherd_setup():
    """To be called after sherd_dependencies().

    A .bzl file cannot load() from a repository that the same macro declares:
    toolchains and rule sets that need that are set up here. Nothing does today.
    """
    pass
