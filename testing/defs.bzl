"""sherd_distributed_test: a GoogleTest program whose tests run on several ranks.

    load("@sherd//testing:defs.bzl", "sherd_distributed_test")

    sherd_distributed_test(
        name = "reshard_test",
        srcs = ["reshard_test.cc"],
        backends = ["gloo"],
        world_size = 4,
        deps = ["@sherd//core/sharding:sharded_tensor"],
    )
"""

load("//tools/build:defs.bzl", "sherd_cc_library", "sherd_cc_test")

# Backend: its plugin.
_PLUGINS = {
    "gloo": Label("//backends/gloo:libsherd_backend_gloo.so"),
    "mpi": Label("//backends/mpi:libsherd_backend_mpi.so"),
    "shm": Label("//backends/shm:libsherd_backend_shm.so"),
}

# Backends whose ranks must be started by a launcher.
_LAUNCHERS = {"mpi": "mpirun"}

# Backends that need one GPU per rank.
_GPU_BACKENDS = ["nccl"]

# More are not asked for: a machine with fewer cores runs such a test alone.
_MAX_CPUS = 4

_MAX_WORLD_SIZE = 256

def _split(label):
    """Repository ("" for the main one) and package of a label in a BUILD file."""
    if label.startswith("@"):
        repository, _, rest = label.lstrip("@").partition("//")
        return repository, rest.partition(":")[0]
    if label.startswith("//"):
        return native.repository_name().lstrip("@"), label[2:].partition(":")[0]
    return native.repository_name().lstrip("@"), native.package_name()

def _directories(repository, package):
    """Where a test finds the package's files, from its working directory."""
    if not repository:
        return [package or "."]

    # With and without --legacy_external_runfiles.
    return [
        "%s/%s/%s" % (parent, repository, package)
        for parent in ("..", "external")
    ]

def _plugin(name, backend, plugins):
    """The plugin's label, and the directories to look for it."""
    if backend in plugins:
        return plugins[backend], _directories(*_split(plugins[backend]))
    if backend in _PLUGINS:
        label = _PLUGINS[backend]
        return label, _directories(label.workspace_name, label.package)
    if backend == "local":
        fail("%s: ranks of the backend local are threads, not processes: use RunLocalRanks of //testing:local_ranks in a plain test" % name)
    fail("%s: Backend %s not supported! There are: %s; name the plugin of any other one with plugins = {\"%s\": \"//its:plugin.so\"}" %
         (name, backend, ", ".join(sorted(_PLUGINS)), backend))

def sherd_distributed_test(
        name,
        srcs,
        world_size = None,
        world_sizes = None,
        backends = ["gloo"],
        deps = [],
        copts = [],
        data = [],
        env = {},
        launcher = None,
        plugins = {},
        size = "medium",
        tags = [],
        visibility = None,
        **kwargs):
    """One test per backend and world size, and a test_suite of them all.

    The tests are called <name>_<backend>_<n>ranks, the suite <name>. Sources
    use SHERD_DIST_TEST_F of "sherd/testing/distributed_test.h"; main() and the
    harness are linked. Fixtures that leave world_size() alone get the target's.

    Tags, for --test_tag_filters: distributed, backend-<backend>, cpu:<n>; with
    backends on GPUs also gpu, requires-gpu-nvidia, multi-gpu, exclusive.

    Args:
      name: of the suite.
      srcs: sources, compiled once.
      world_size: number of ranks; 4 if world_sizes is not given either.
      world_sizes: several of them.
      backends: names of collective backends.
      deps: libraries under test.
      copts: compiler options of the sources.
      data: as for cc_test.
      env: as for cc_test.
      launcher: "mpirun", or None: the harness starts the ranks itself, except
        with backends that need their launcher (mpi).
      plugins: {backend: label of libsherd_backend_<backend>.so}, for backends
        that are not Sherd's.
      size: as for cc_test.
      tags: further tags of the tests.
      visibility: of the tests and the suite.
      **kwargs: as for cc_test.
    """
    if world_size != None and world_sizes != None:
        fail("%s: give world_size or world_sizes, not both" % name)
    if world_sizes == None:
        world_sizes = [world_size if world_size != None else 4]
    for ranks in world_sizes:
        if ranks < 1 or ranks > _MAX_WORLD_SIZE:
            fail("%s: world size %d, expected 1 to %d" % (name, ranks, _MAX_WORLD_SIZE))
    if launcher not in [None, "mpirun"]:
        fail("%s: launcher %s, expected \"mpirun\" or None" % (name, launcher))
    if not backends or not world_sizes:
        fail("%s: no backend or no world size" % name)

    sherd_cc_library(
        name = name + "_cases",
        testonly = True,
        srcs = srcs,
        copts = copts,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        deps = deps + [Label("//testing:distributed_test_main")],
        alwayslink = True,
    )
    tests = []
    for backend in backends:
        plugin, directories = _plugin(name, backend, plugins)
        for ranks in world_sizes:
            tests.append("%s_%s_%dranks" % (name, backend, ranks))
            gpu_tags = []
            if backend in _GPU_BACKENDS:
                gpu_tags = ["exclusive", "gpu", "requires-gpu-nvidia"]
                if ranks > 1:
                    gpu_tags.append("multi-gpu")
            test_env = {
                "SHERD_PLUGIN_PATH": ":".join(directories),
                "SHERD_TEST_BACKEND": backend,
                "SHERD_TEST_WORLD_SIZE": str(ranks),
            }
            if launcher or backend in _LAUNCHERS:
                test_env["SHERD_TEST_LAUNCHER"] = launcher or _LAUNCHERS[backend]
            test_env.update(env)
            sherd_cc_test(
                name = tests[-1],
                size = size,
                data = data + [plugin],
                env = test_env,
                tags = tags + gpu_tags + [
                    "backend-" + backend,
                    "cpu:%d" % min(ranks, _MAX_CPUS),
                    "distributed",
                ],
                visibility = visibility,
                deps = [":%s_cases" % name],
                **kwargs
            )
    native.test_suite(
        name = name,
        tests = [":" + t for t in tests],
        visibility = visibility,
    )
