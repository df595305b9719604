"""What is computed of drawn numbers: the whole surface of attnspec, most of it attention."""

from .attention_calls import attentions
from .component_calls import components
from .problems import Configuration

CONFIGURATIONS: tuple[Configuration, ...] = (*attentions(), *components())
