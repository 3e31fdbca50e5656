"""Load templates: read the files, lay a child over what it extends, check what one value cannot show.

How ``extends`` combines: mappings merge key by key, and the child's value wins; lists are replaced as a
whole. A ``world`` of the other kind (factory or Gymnasium id) replaces its parent's, keyword arguments
included. ``name``, ``description`` and ``extends`` itself are not inherited. World folders are laid over each
other file by file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from microsim_vm.errors import TemplateError, TemplateNotFoundError
from microsim_vm.templates import checks, inputs, search
from microsim_vm.templates.checks import Complaint
from microsim_vm.templates.decode import fields, nearest
from microsim_vm.templates.spec import TEMPLATE_FILE, Document, OtherMachine, Template
from microsim_vm.templates.yaml import Mapping, Node, Scalar, read, refuse
from microsim_vm.templates.yaml import Sequence as ListNode

_NOT_INHERITED = ("name", "description", "extends")
DOMAIN = "ROS_DOMAIN_ID"


class _Read(NamedTuple):
    """One YAML file of a template."""

    path: Path
    node: Mapping

    @property
    def is_template(self) -> bool:
        """False for a file with another name: it lends its keys, and its folder is no world folder."""
        return self.path.name == TEMPLATE_FILE


def find_template(name: str | Path, directories: Sequence[Path]) -> Template:
    """Load a template by its name, or by the path of its folder.

    Args:
        name: A name to look for, or a path (a string with a ``/`` in it or a ``.`` before it is one).
        directories: Where to look, see :func:`~microsim_vm.templates.search.search_path`. Other templates
            there are not read, so a broken one does no harm.

    Raises:
        TemplateNotFoundError: There is none.
        TemplateError: It cannot be used as written.
    """
    if isinstance(name, str) and not checks.is_path(name):
        return load_template(search.locate(name, directories), directories)
    path = Path(name)
    if not (path.is_file() or (path / TEMPLATE_FILE).is_file()):
        raise search.not_found(str(name), directories)
    return load_template(path, directories)


def load_template(path: Path, directories: Sequence[Path] | None = None) -> Template:
    """Load a template.

    Args:
        path: A template's folder, or the ``template.yaml`` in it.
        directories: Where ``extends: NAME`` looks for names; by default beside the template, then among the
            shipped ones.

    Raises:
        TemplateError: It cannot be used as written; starts with file and line.
        UnsupportedWorldError: It needs a GPU, photoreal rendering or hardware.
    """
    path = search.absolute(path)
    if path.is_dir():
        path = path / TEMPLATE_FILE
    if path.name != TEMPLATE_FILE:
        raise TemplateError(f"{path}:1: a template's file is called {TEMPLATE_FILE}", hint="give the folder it is in")
    if directories is None:
        directories = (path.parent.parent, search.shipped_templates_dir())
    chain = _chain(path, directories)
    merged = chain[0].node
    for ancestor in chain[1:]:
        merged = _merge(ancestor.node, merged)
    folders = (file.path.parent for file in reversed(chain) if file.is_template)
    values = fields(merged, Document)
    others = _others(values.get("machines", {}), merged, directories)
    template = Template(**values, path=path, world_folders=tuple(dict.fromkeys(folders)), others=others)
    _check_network(template, merged)
    _check_controller(template, merged)
    _check_lists(template, merged)
    files = _check_files(template, merged)
    if template.score is not None and not template.score.is_file():
        refuse(merged.values["score"], Complaint(f"score: there is no file {template.score}"))
    if "world" in merged.values:
        _check_world(template, merged.values["world"], {file.label for file in files})
    return template


def _others(machines: dict[str, OtherMachine], merged: Mapping, directories: Sequence[Path]) -> dict[str, Template]:
    """Load the templates of a rollout's other machines."""
    others: dict[str, Template] = {}
    nodes = merged.values.get("machines")
    for name, machine in machines.items():
        assert isinstance(nodes, Mapping)
        entry = nodes.values[name]
        assert isinstance(entry, Mapping)
        node = entry.values["template"]
        assert isinstance(node, Scalar)
        path, problem = _parent(node.file, machine.template, directories)
        if problem is not None:
            refuse(node, Complaint(f"machine {name!r}: {problem.what}", problem.hint), problem.details)
        if any("machines" in file.node.values for file in _chain(path, directories)):
            refuse(
                node, Complaint(f"machine {name!r} has machines of its own: {path}", "list them all in one template")
            )
        others[name] = load_template(path, directories)
    return others


def _check_network(template: Template, merged: Mapping) -> None:
    """Refuse what a network's policy leaves no place for."""
    for key, needs in (("egress", ("egress",)), ("publish", ("island", "egress")), ("machines", ("island", "egress"))):
        if getattr(template, key) and template.network not in needs:
            refuse(
                merged.keys[key],
                Complaint(f"{key} is written, and network is {template.network}", f"write network: {needs[0]}"),
            )
    ours = {"sim", "gateway", "localhost", *template.machines}
    for line, node in zip(template.egress, _items(merged, "egress"), strict=True):
        if (name := line.rpartition(":")[0].lower()) in ours:
            refuse(node, Complaint(f"egress names {name!r}, which is on the island itself", "name what is beyond it"))
    for name, other in template.others.items():
        if other.network == "none":
            refuse(
                merged.keys["machines"],
                Complaint(f"machine {name!r} has no network: {other.path}", "write network: island there"),
            )
    env = merged.values.get("env")
    if isinstance(env, Mapping) and DOMAIN in env.values:
        try:
            checks.ros_domain(template.env[DOMAIN])
        except Complaint as complaint:
            refuse(env.values[DOMAIN], complaint)


def _check_controller(template: Template, merged: Mapping) -> None:
    """Refuse another machine for controllers that there is not, and what holds in no machine then."""
    name, node = template.controller.machine, merged.values.get("controller")
    if name is None or not isinstance(node, Mapping):
        return
    if name not in template.others:
        near = nearest(name, list(template.others))
        question = f'did you mean "{near}"? ' if near else ""
        refuse(
            node.values["machine"],
            Complaint(
                f"controllers are to run in a machine {name!r}, and there is none",
                f"{question}write machines: {{{name}: {{template: ...}}}}, or leave it out: they run beside the world",
            ),
        )
    for key in template.controller.sight:
        refuse(
            node.keys[key],
            Complaint(
                f"controller.{key} is written, and controllers run in the machine {name!r}",
                f"write it in that machine's template: {template.others[name].path}",
            ),
        )


def _chain(path: Path, directories: Sequence[Path]) -> list[_Read]:
    """Read a template and all that it extends, the template first."""
    chain = [_read(path, "")]
    while "extends" in chain[-1].node.values:
        where = chain[-1].node.values["extends"]
        extends = fields(chain[-1].node, Document)["extends"]
        parent, problem = _parent(chain[-1].path, extends, directories)
        paths = [file.path for file in chain] + [parent]
        trail = " -> ".join(str(file) for file in paths)
        if problem is not None:
            details = f"{trail}\n{problem.details}".rstrip()
            refuse(where, Complaint(f"extends {extends!r}: {problem.what}", problem.hint), details)
        if parent.resolve() in {file.path.resolve() for file in chain}:
            refuse(where, Complaint(f"extends {extends!r} goes in a circle: {trail}", "remove one of the links"))
        chain.append(_read(parent, trail))
    return chain


def _parent(path: Path, extends: str, directories: Sequence[Path]) -> tuple[Path, TemplateError | None]:
    """Return the file that an ``extends`` means, and what is wrong with it."""
    if not checks.is_path(extends):
        try:
            return search.locate(extends, directories, but=path.parent), None
        except TemplateNotFoundError as error:
            return Path(extends), error
    parent = search.absolute(path.parent / extends)
    if parent.is_dir():
        parent = parent / TEMPLATE_FILE
    if parent.is_file():
        return parent, None
    hint = f"paths are relative to the file that writes them, here to {path.parent}"
    return parent, TemplateError(f"there is no file {parent}", hint=hint)


def _read(path: Path, trail: str) -> _Read:
    """Read one file and check it by itself, so that a value that a child replaces is checked too."""
    try:
        file = _Read(path, read(path))
        values = fields(file.node, Document)
        if file.is_template:
            _check_name(file, values.get("name"))
    except TemplateError as error:
        if trail and not error.details:
            error.details = f"extended by: {trail}"
        raise
    return file


def _check_name(file: _Read, name: str | None) -> None:
    folder = file.path.parent.name
    if name is None:
        refuse(file.node, Complaint("the template has no name", f"add name: {folder} (the name of its folder)"))
    if name != folder:
        refuse(
            file.node.values["name"],
            Complaint(
                f"the template is called {name!r}, and its folder {folder!r}",
                f"write name: {folder}, or rename the folder",
            ),
        )


def _merge(parent: Mapping, child: Mapping, *, top: bool = True) -> Mapping:
    """Lay a child's keys over its parent's."""
    values: dict[str, Node] = dict(parent.values)
    keys = dict(parent.keys)
    if top:
        for name in _NOT_INHERITED:
            values.pop(name, None)
            keys.pop(name, None)
    for key, value in child.values.items():
        above = values.get(key)
        if isinstance(value, Mapping) and isinstance(above, Mapping) and not (top and _other_kind(key, above, value)):
            value = _merge(above, value, top=False)
        values[key] = value
        keys[key] = child.keys[key]
    return Mapping(values, keys, child.file, child.line)


def _other_kind(key: str, parent: Mapping, child: Mapping) -> bool:
    kinds = {"factory", "gymnasium"}
    mine = kinds & child.values.keys()
    return key == "world" and bool(mine) and mine != kinds & parent.values.keys()


def _items(merged: Mapping, *keys: str) -> Sequence[Node]:
    """Return the nodes of a list below the top level; empty where it is not written."""
    node: Node | None = merged
    for key in keys:
        node = node.values.get(key) if isinstance(node, Mapping) else None
    return node.items if isinstance(node, ListNode) else ()


def _check_lists(template: Template, merged: Mapping) -> None:
    """Refuse what a list says twice."""
    pins = [checks.requirement_key(pin) for pin in template.python.requirements]
    _unique(pins, _items(merged, "python", "requirements"), "requirement", [key[0] for key in pins])
    for name, node in zip(template.python.without, _items(merged, "python", "without"), strict=True):
        if canonicalize_name(name) in [key[0] for key in pins]:
            refuse(node, Complaint(f"python.requirements has {name!r}, and python.without leaves it out", "keep one"))
    _unique(template.publish, _items(merged, "publish"), "port", list(map(str, template.publish)))
    names = [process.name for process in template.processes]
    _unique(names, _items(merged, "processes"), "process", names)


def _unique(keys: Sequence[object], nodes: Sequence[Node], what: str, names: Sequence[str]) -> None:
    first: dict[object, Node] = {}
    for key, node, name in zip(keys, nodes, names, strict=True):
        if key in first:
            refuse(
                node,
                Complaint(f"{what} {name!r} is there twice, first on line {first[key].line}", "keep one"),
            )
        first[key] = node


def _check_files(template: Template, merged: Mapping) -> list[inputs.InputFile]:
    """Find all input files, so that a missing or unusable one is refused with the line that names it."""
    for entry, node in zip(template.files, _items(merged, "files"), strict=True):
        try:
            list(inputs.of_entry(entry))
        except Complaint as complaint:
            refuse(node, complaint)
    try:
        return inputs.collect(template.world_folders, template.files)
    except Complaint as complaint:
        refuse(merged.values.get("files", merged), complaint)


def _check_world(template: Template, node: Node, labels: Iterable[str]) -> None:
    world = template.world
    assert world is not None
    assert isinstance(node, Mapping)
    if world.factory is not None and world.gymnasium is not None:
        refuse(
            node.keys["gymnasium"],
            Complaint("world has both a factory and a gymnasium id", "keep one of them"),
        )
    if world.gymnasium is not None and not template.python.requirements:
        refuse(
            node.values["gymnasium"],
            Complaint(
                f"world {world.gymnasium!r} needs gymnasium, and python.requirements is empty",
                'pin it: python: {requirements: ["gymnasium==VERSION"]}',
            ),
        )
    if world.factory is not None:
        _check_module(world.factory.partition(":")[0], template, node.values["factory"], labels)
    elif world.gymnasium is None:
        refuse(node, Complaint("world has no factory", 'add factory: "world:make", or gymnasium: "Pendulum-v1"'))


def _check_module(module: str, template: Template, node: Node, labels: Iterable[str]) -> None:
    file = f"world/{module.replace('.', '/')}"
    present = set(labels)
    if f"{file}.py" in present or f"{file}/__init__.py" in present:
        return
    modules = [
        label.removeprefix("world/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for label in present
        if label.startswith("world/") and label.endswith(".py")
    ]
    near = nearest(module, modules)
    folders = " or ".join(str(folder) for folder in template.world_folders)
    question = f'did you mean "{near}"? ' if near else ""
    refuse(
        node,
        Complaint(
            f"there is no module {module!r} for the world's factory in {folders}",
            f"{question}put {module.replace('.', '/')}.py beside {TEMPLATE_FILE}; "
            "for a factory from a package, import it in that file",
        ),
    )
