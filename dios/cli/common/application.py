"""The applications of Typer that the commands are made of, and their help.

``--help`` shows the common options, and ``--help-all`` all of them. An option that is not common names, in
``section``, the heading below which ``--help-all`` lists it. In a docstring or an epilog, the text behind a
form feed is for ``--help-all``. A command reports its errors, and has the type of its JSON.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.models import Default

from dios.cli.common.options import COMMON, typer_callback
from dios.cli.common.spellings import OLD_COMMANDS, old_options
from dios.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer._click import Command, Context, HelpFormatter, Parameter
    from typer._click.parser import _OptionParser

_Function: TypeAlias = "Callable[..., None]"  # type: ignore[explicit-any] # any signature
F = TypeVar("F", bound=_Function)

_SHOWS_ALL: Final = "dios.help_all"
"""The key under which a context records that ``--help-all`` was given."""
_TEXT_MAX: Final = 1_000
"""The length up to which the first sentence of a command's help is taken."""


class CommonHelp:
    """A command or a group whose help has a short and a long form."""

    params: list[Parameter]
    help: str | None
    epilog: str | None
    _all_option: TyperOption | None = None

    def get_params(self, ctx: Context) -> list[Parameter]:
        """Return the parameters and ``--help-all``, which is hidden if it shows no more than ``--help``."""
        params: list[Parameter] = super().get_params(ctx)  # type: ignore[misc] # of the command's class
        # The parser finds an option that was given by its identity.
        self._all_option = self._all_option or _help_all_option(hidden=not self.has_more)
        return [*params, self._all_option]

    @property
    def has_more(self) -> bool:
        """True if ``--help`` leaves out options or text."""
        texts = (self.help or "", self.epilog or "")
        return any("\f" in text for text in texts) or any(_is_rare(param) for param in self.params)

    def format_help_text(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the description."""
        text = _text_for(ctx, self.help)
        if text:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(text)

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the arguments and the common options, then with ``--help-all`` the other sections."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], COMMON: []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and (ctx.meta.get(_SHOWS_ALL) or not _is_rare(param)):
                sections.setdefault(_section_of(param), []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if isinstance(self, TyperGroup):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the examples, and say where the rest of the options is."""
        texts = [_text_for(ctx, self.epilog)]
        if self.has_more and not ctx.meta.get(_SHOWS_ALL):
            hidden = sum(_is_rare(param) for param in self.params)
            rest = f"the {hidden} other options" if hidden else "more"
            texts.append(f"`{ctx.command_path} --help-all` shows {rest}.")
        for text in filter(None, texts):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(text)


def _help_all_option(*, hidden: bool) -> TyperOption:
    def show(ctx: Context, param: Parameter, given: bool) -> None:  # noqa: FBT001 - typer calls it so
        del param
        if given and not ctx.resilient_parsing:
            ctx.meta[_SHOWS_ALL] = True
            typer.echo(ctx.get_help())
            ctx.exit()

    return TyperOption(
        param_decls=["--help-all"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        help="Show all options, and exit.",
        hidden=hidden,
        callback=show,
    )


def _section_of(param: Parameter) -> str:
    if param.param_type_name == "argument":
        return "Arguments"
    return getattr(param, "rich_help_panel", None) or COMMON


def _is_rare(param: Parameter) -> bool:
    return _section_of(param) not in ("Arguments", COMMON) and not getattr(param, "hidden", False)


def _text_for(ctx: Context, text: str | None) -> str:
    """Return the part of a text that this help shows."""
    common, _, rest = inspect.cleandoc(text or "").partition("\f")
    return common + rest if ctx.meta.get(_SHOWS_ALL) else common.rstrip()


class Output(NamedTuple):
    """The JSON of a command: one object, a list of objects, or, with None for ``many``, either of them.

    A row is a type, or the place ``module:name`` of one that is imported late. ``note`` says when there is
    more than one such document.
    """

    rows: tuple[object, ...]
    many: bool | None = False
    note: str = ""


LINES: Final = "Each line is such a document."


class Reporting:
    """A command or a group that reports errors: with the words that call it, and its own exit status."""

    output: Output | None = None
    """The types of what it prints with ``--json``."""
    failure_status = 1

    def invoke(self, ctx: Context) -> object:
        """Run the command."""
        # Imported late, because the help of a program needs none of it.
        from dios.cli.common.output import reporting  # noqa: PLC0415 - see above

        program = "dios-node" if ctx.find_root().info_name == "dios-node" else "dios"
        as_json = bool(ctx.params.get("as_json"))
        with reporting(f"{program} {_words_of(ctx)}".rstrip(), as_json=as_json, status=self.failure_status):
            return super().invoke(ctx)  # type: ignore[misc] # of the command's class


class OneCommand(CommonHelp, Reporting, TyperCommand):
    """A command with a short and a long help, whose options have their old names, too."""

    def __init__(self, *, output: Output | None = None, failure_status: int = 1, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type] # Typer's own settings, passed on
        self.output, self.failure_status = output, failure_status

    def make_parser(self, ctx: Context) -> _OptionParser:
        """Return the parser of the options."""
        parser = super().make_parser(ctx)
        for row in old_options(_words_of(ctx)):
            parser._long_opt[row.old] = parser._long_opt[row.new]  # noqa: SLF001 - add_option would show it
        return parser


def _words_of(ctx: Context) -> str:
    """Return the words that call a command, without its program."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return " ".join(words)


class CommandGroup(CommonHelp, TyperGroup):
    """A group that lists its commands with complete lines, and has them under their old names, too."""

    output: Output | None = None

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """Return a command by its name, or by the name that it had before."""
        command = super().get_command(ctx, cmd_name)
        return command or super().get_command(ctx, OLD_COMMANDS.get(cmd_name, cmd_name))

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the commands with the whole first sentences of their descriptions."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        records = [(name, line_of(command)) for name, command in commands if command and not command.hidden]
        if records:
            with formatter.section("Commands"):
                formatter.write_dl(records)


def line_of(command: Command) -> str:
    """Return the first sentence of a command's description."""
    return command.get_short_help_str(_TEXT_MAX)


class _ReportingGroup(Reporting, CommandGroup):
    """A group that is a command, too."""


def calls_group(context: typer.Context) -> bool:
    """Return True if a group is called itself. Raise InvalidError for options before a subcommand."""
    word = context.invoked_subcommand
    names = {param.name: param.opts[0] for param in context.command.params}
    given = [
        names[name] if value is True else f"{names[name]} {value}"
        for name, value in context.params.items()
        if value
    ]
    if word is not None and given:
        line = f"{context.command_path} {word} {' '.join(given)}"
        raise InvalidError(f"put options after the subcommand: {line}")
    return word is None


class CommandApplication(typer.Typer):
    """An application whose commands and groups have our help.

    A setting that is ``Default`` here can be given by the callback of the group.
    """

    def __init__(
        self,
        *,
        help: str | None = Default(None),  # noqa: A002 - Typer's name
        epilog: str | None = Default(None),
        cls: type[CommandGroup] = CommandGroup,
        name: str | None = Default(None),
        no_args_is_help: bool = Default(value=False),
        context_settings: dict[str, object] | None = None,
        pretty_exceptions_enable: bool = True,
    ) -> None:
        super().__init__(
            name=name,
            help=help,
            epilog=epilog,
            cls=cls,
            no_args_is_help=no_args_is_help,
            context_settings=context_settings,
            pretty_exceptions_enable=pretty_exceptions_enable,
            rich_markup_mode=None,
        )

    def command(  # type: ignore[override] # with the settings that our commands use
        self,
        name: str | None = None,
        *,
        examples: str = "",
        epilog: str | None = None,
        json: object = None,
        note: str = "",
        failure_status: int = 1,
        context_settings: dict[str, object] | None = None,
        hidden: bool = False,
    ) -> Callable[[F], F]:
        """Return the decorator that makes a function a command.

        ``json`` is the type of its JSON: a row; a tuple of rows, if it prints a row of one of these types; a
        list with a row, if it prints a list; or an Output. ``examples`` are lines for the end of its help.
        """
        cls = partial(OneCommand, output=_output(json, note), failure_status=failure_status)
        return _registering(
            super().command(
                name,
                cls=cast("type[TyperCommand]", cls),
                epilog=epilog or _epilog(examples),
                context_settings=context_settings,
                hidden=hidden,
            )
        )

    def callback(  # type: ignore[override] # with the settings that our groups use
        self, *, examples: str = "", json: object = None, invoke_without_command: bool = False
    ) -> Callable[[F], F]:
        """Return the decorator that gives a group options; it may make the group a command, too."""
        cls = self.info.cls
        if invoke_without_command:
            cls = type("GroupCommand", (_ReportingGroup,), {"output": _output(json, "")})
        return _registering(
            super().callback(
                cls=cls,
                epilog=_epilog(examples) or self.info.epilog,
                invoke_without_command=invoke_without_command,
            )
        )


def _epilog(examples: str) -> str | None:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples.split("\n")) if examples else None


def _output(json: object, note: str) -> Output | None:
    if json is None or isinstance(json, Output):
        return json
    many = isinstance(json, list)
    return Output(tuple(json) if isinstance(json, list | tuple) else (json,), many, note)


def _registering(register: Callable[[_Function], object]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        register(typer_callback(command))
        return command

    return decorate
