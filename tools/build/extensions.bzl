"""Module extension for Bazel 7 (never loaded by Bazel 4)."""

load("//tools/build:deps.bzl", "system_library_repositories")

def _system_libraries_impl(_ctx):
    system_library_repositories()

system_libraries = module_extension(implementation = _system_libraries_impl)
