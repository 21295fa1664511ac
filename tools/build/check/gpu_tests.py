"""Tests on GPUs carry their tags, and no others do.

--test_tag_filters=gpu then runs exactly these, and -gpu leaves out exactly
these. A test is on GPUs if sherd_distributed_test declares that it needs some
(SHERD_TEST_GPUS) that are not emulated, or if it links libraries of the CUDA
toolkit itself: libraries below it may, and do without a GPU.
"""

import xml.etree.ElementTree as ElementTree

_CUDA = "@local_config_cuda//"
_HEADERS = _CUDA + ":cuda_headers"


def _strings(rule, list_name):
    return {s.get("value") for l in rule.findall("list") if l.get("name") == list_name
            for s in l.findall("string")}


def _gpus(rule):
    """Its environment's settings of GPUs that are not emulated."""
    env = dict([s.get("value") for s in pair.findall("string")]
               for pair in rule.iterfind("dict[@name='env']/pair"))
    return 0 if "SHERD_EMULATED_GPUS" in env else int(env.get("SHERD_TEST_GPUS", 0))


def _wanted(gpus, names_cuda):
    tags = set()
    if gpus or names_cuda:
        tags |= {"gpu", "requires-gpu-nvidia"}
    if gpus:
        tags.add("exclusive")
    if gpus > 1:
        tags.add("multi-gpu")
    return tags


def check(query_xml):
    """Messages about the tests in the XML of a query."""
    found = []
    for rule in ElementTree.fromstring(query_xml).iter("rule"):
        if not rule.get("class").endswith("_test"):
            continue
        name, tags = rule.get("name"), _strings(rule, "tags")
        inputs = {i.get("name") for i in rule.findall("rule-input")}
        names_cuda = any(i.startswith(_CUDA) for i in inputs - {_HEADERS})
        wanted = _wanted(_gpus(rule), names_cuda)
        for tag in sorted(wanted - tags):
            found.append('%s lacks the tag "%s"' % (name, tag))
        for tag in sorted((tags & {"gpu", "multi-gpu", "requires-gpu-nvidia"}) - wanted):
            found.append('%s has the tag "%s", but needs %s' % (
                name, tag, "one GPU" if "gpu" in wanted else "none"))
    return sorted(found)
