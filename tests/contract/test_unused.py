"""Nothing is defined that nobody uses; tests do not count as users.

Functions, classes and constants of modules are told apart by module: a use is a name that a module binds by
import or by its own definition. Methods, attributes and fields are told apart by name alone.
"""

import ast
import functools
import re
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).parents[2]
FOLDERS = {"nlgraft": ROOT / "platform", "trainables": ROOT, "examples": ROOT, "benchmarks": ROOT}
"""Packages, and where each is imported from."""
USERS = {"examples", "benchmarks"}
"""Packages of `FOLDERS` that only use."""

# Names that no code of ours reads, by who reads them instead. A name that is read again leaves the list.
UNREAD = {
    "Python itself": {"__getattr__", "__class__"},
    "notebooks": {"_repr_html_"},
    "click": {"format_commands"},
    "templates of reports and papers": {
        "is_folded", "why_none", "num_again", "num_elsewhere", "elsewhere_s", "num_proposals",
    },
    "Ray Tune calls its searcher and callbacks, and reads bases of a trainable": {
        "suggest", "restore", "checkpoint_path", "iteration", "__mixins__",
    },
    "MLflow calls its model": {"load_context"},
    "sacreBLEU reads what is set on its metric": {"num_refs"},
    "what is held so that it lives as long": {"_keeper"},
    "transformers, tokenizers, SentencePiece and PyYAML read what is set on their objects": {
        "use_cache", "share_encoder_decoder_embeddings", "tie_encoder_decoder", "tie_word_embeddings",
        "padding_side", "encode_special_tokens", "bos_piece", "eos_piece", "pad_piece",
        "ignore_aliases", "post_processor",
    },
    "CTranslate2 reads what is set on its specification": {
        "layer_norm_epsilon", "bos_token", "eos_token", "decoder_start_token", "scale_embeddings",
    },
    "fingerprints of stored translations, scores, plans and trainings hold them": {
        "engine", "dev_precision", "norm_match", "distillation_reduction", "distillation_align",
        "dropnet_probabilities", "has_memory_norm", "is_norm_affine", "self_scope",
    },
    "zipfile writes the comment that is set": {"comment"},
    "whoever calls the Python API": {"events", "from_dict", "log_probability"},
    "fields of documents and configs, written and read whole": {
        "schema_version", "num_empty_lines", "best_step", "is_assumed",
    },
}  # fmt: skip


@functools.cache
def parsed(*folders):
    """The modules of packages by their dotted names."""
    modules = {}
    for package, root in folders:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            modules[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text("utf-8"))
    return modules


@functools.cache
def nodes_of(statement):
    """All nodes of a statement; each is walked once, since that takes most of the time."""
    return tuple(ast.walk(statement))


def named_in_text(modules):
    """Functions that are named as ``package.module:function``; the module is empty where it is a variable."""
    texts = {
        node.value
        for tree in modules.values()
        for statement in tree.body
        for node in nodes_of(statement)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    matches = (re.fullmatch(r"([\w.]*):([A-Za-z_]\w*)", text) for text in texts)
    # of f"{STAGES}.generator:train" only the end is known
    return {("" if match[1][:1] in ("", ".") else match[1], match[2]) for match in matches if match}


def definitions(tree):
    """Names that a module defines at its top, each with its statement."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.decorator_list or isinstance(node, ast.ClassDef) or is_plain(node):
                yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from ((child.id, node) for child in ast.walk(target) if isinstance(child, ast.Name))


def is_plain(node):
    """A command of click is called by click: it counts as used, whereas a cached function does not."""
    written = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
    return not re.search(r"\b(command|group|_study_command|callback|overload)\b", written)


def imports(tree, modules):
    """What a module imports by name, as (module, name), and modules by the names that they have in it."""
    names, aliases = set(), {}
    for node in (node for statement in tree.body for node in nodes_of(statement)):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname: alias.name for alias in node.names if alias.name in modules}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if f"{node.module}.{alias.name}" in modules:
                    aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                else:
                    names.add((node.module, alias.name))
    return names, aliases


def read_in(statement, module, aliases):
    """Names of modules that a statement reads; those of its own parameters and variables are none."""
    nodes = nodes_of(statement)
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    if isinstance(statement, ast.FunctionDef):
        own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        own -= {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in own:
            yield module, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield aliases.get(node.value.id), node.attr


def unused(folders):
    """What modules define and none of them uses, as ``module.name``."""
    modules = parsed(*folders.items())
    used = named_in_text(modules)
    for module, tree in modules.items():
        names_of = {}
        for name, statement in definitions(tree):
            names_of.setdefault(statement, set()).add(name)
        names, aliases = imports(tree, modules)
        used |= names
        for statement in tree.body:
            # a function that calls itself, or a constant that is only bound, is not used by that
            used |= {
                (where, name)
                for where, name in read_in(statement, module, aliases)
                if where != module or name not in names_of.get(statement, ())
            }
    used |= {
        (module, name)
        for module, tree in modules.items()
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for name in ast.literal_eval(node.value)
    }
    return sorted(
        f"{module}.{name}"
        for module, tree in modules.items()
        for name, _ in definitions(tree)
        if not {(module, name), ("", name)} & used and not re.fullmatch(r"__\w+__|_", name)
    )


def test_every_function_class_and_constant_is_used():
    assert [name for name in unused(FOLDERS) if name.split(".")[0] not in USERS] == []


def test_a_function_is_unused_although_a_field_has_its_name(tmp_path):
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "__init__.py").write_text("")
    (tmp_path / "house" / "presets.py").write_text(
        "SIZES = {}\ndef preset(name):\n    return SIZES[name] or preset('base')\ndef tiny():\n    return 1\n"
    )
    (tmp_path / "house" / "config.py").write_text(
        "from house import presets\n"
        "class Config:\n    preset: str = 'base'\n    sizes: int = presets.tiny()\n"
        "def build(preset):\n    return Config().preset, preset\n"
        "print(build(1))\n"
    )
    assert unused({"house": tmp_path}) == ["house.presets.preset"]


def test_nothing_is_defined_that_nobody_uses():
    """By name; finds methods, attributes and variables, too."""
    decorators = ["@main.*", "@vocab.*", "@_study_command", "@model_validator", "@field_validator"]
    vulture = Vulture(ignore_decorators=decorators)
    vulture.scavenge([str(ROOT / name) for name in ("platform/nlgraft", "trainables", "examples")])
    unused = {
        item.name: f"{Path(item.filename).relative_to(ROOT)}:{item.first_lineno}: {item.typ} {item.name}"
        for item in vulture.get_unused_code(min_confidence=60)
        if "examples" not in item.filename.parts
    }
    listed = set().union(*UNREAD.values())
    allowed = listed | {name for _, name in named_in_text(parsed(*FOLDERS.items()))}
    assert "\n".join(place for name, place in unused.items() if name not in allowed) == ""
    assert not listed - unused.keys(), "these names are used now, or gone"
