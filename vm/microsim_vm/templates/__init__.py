"""Templates: what a world is made of, how it is read, and how it becomes an image."""

from microsim_vm.templates.load import find_template, load_template
from microsim_vm.templates.search import Found, list_templates, search_path, shipped_templates_dir
from microsim_vm.templates.spec import Template

__all__ = [
    "Found",
    "Template",
    "find_template",
    "list_templates",
    "load_template",
    "search_path",
    "shipped_templates_dir",
]
