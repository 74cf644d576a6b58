"""``dios store``: replicated key-value stores, their hosts, and the replacement of hosts that are lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.options import argument, option
from dios.cli.common.output import Cells, Number, counted, waiting
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.client.keyring import Keyring, check_alias
from dios.errors import DiosError, ExistsError, InvalidError, UnreachableError
from dios.ids import Name
from dios.lib.keyvalue import KeyValueStore, create_store, open_store
from dios.lib.store_keeper import keep_store, spare_nodes
from dios.wire.nametext import fingerprint, parse_name

STORE_ALIAS: Final = "store/"
"""The beginning of the aliases of stores in the keyring, before ``GROUP/STORE``."""

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Key-value stores: the nodes that have them, and what is lost of them.",
)

STORE_ARGUMENT: Final[str] = argument("GROUP/STORE", "A store of your keyring.")


class StoreRow(Row):
    """A store: its nodes, those of them that do not answer, and its keys, null if no majority answers."""

    store: str
    fingerprint: str
    hosts: list[str]
    away: list[str]
    keys: int | None
    problem: str

    def cells(self) -> Cells:
        """Return the line of the table."""
        return {
            "STORE": self.store,
            "HOSTS": ", ".join(host or "this node" for host in self.hosts) or None,
            "AWAY": ", ".join(self.away) or None,
            "KEYS": Number("-" if self.keys is None else self.keys),
            "FINGERPRINT": self.fingerprint,
        }


class RepairedStoreRow(Row):
    """The outcome of a repair: the values that got a replica back, and the parts of the index that moved.

    ``behind`` is the number of copies of the index that do not answer.
    """

    store: str
    hosts: list[str]
    restored: int
    behind: int
    replaced: str | None
    by: str | None
    moved: int


@app.command(
    examples="dios store create papers/users --on n1,n2,n3\n"
    "dios store create papers/users --on n1,n2,n3 --keep",
    json=StoreRow,
)
def create(
    store: str = STORE_ARGUMENT,
    *,
    on: str = option("--on NODE,…", "The nodes of the store; default: this node."),
    keep: bool = option("--keep", "Replace nodes that do not answer for ten minutes, from now on."),
    common: CommonOptions,
) -> None:
    """Create a key-value store on several nodes, and add its name to your keyring.

    It works while most of its nodes answer: three of them survive the loss of one. --keep starts a service
    that replaces lost nodes; `dios service ls` shows it. Programs open the store with dios.lib.keyvalue.
    """
    alias, short = _split(store)
    with opened(common.node, [alias]) as place:
        keyring = Keyring.load()
        if _entry(alias, short) in keyring.objects:
            raise ExistsError(f"your keyring already has a store {store!r}. Choose another name.")
        chosen = [host.strip() for host in on.split(",")] if on else [""]
        group = place.group(alias)
        kv_store = create_store(place.node, group, hosts=chosen)
        keyring.add(_entry(alias, short), Name(kv_store.name), section="objects")
        if keep:
            keep_store(place.node, group, kv_store)
        row = _described(store, kv_store)
        common.print_row(row, *_problems([row]), table=[row.cells()])


@app.command("add", examples="dios store add papers/users dios1…", json=StoreRow)
def add_store(
    store: str = STORE_ARGUMENT,
    name: str = argument("NAME", "The store's name, which its program has."),
    *,
    common: CommonOptions,
) -> None:
    """Add a store that a program created to your keyring, so that the other commands find it."""
    alias, short = _split(store)
    with opened(common.node, [alias]) as place:
        kv_store = open_store(place.node, place.group(alias), parse_name(name))
        Keyring.load().add(_entry(alias, short), Name(kv_store.name), section="objects")
        row = _described(store, kv_store)
        common.print_row(row, *_problems([row]), table=[row.cells()])


@app.command("ls", examples="dios store ls\ndios store ls --json | jq '.[].away'", json=[StoreRow])
def list_stores(common: CommonOptions) -> None:
    """List the key-value stores of your keyring, with their nodes and those that do not answer."""
    with opened(common.node) as place:
        known = [entry for entry in place.keyring.objects if entry.startswith(STORE_ALIAS)]
        with waiting("asking the nodes of the stores"):
            rows = [_looked_at(place, entry.removeprefix(STORE_ALIAS)) for entry in sorted(known)]
        common.print_rows(
            rows,
            StoreRow.cells,
            _problems(rows),
            empty="there are no stores yet; next: dios store create GROUP/STORE --on NODE,NODE,NODE",
        )


@app.command(
    examples="dios store repair papers/users\ndios store repair papers/users --replace n3\n"
    "dios store repair papers/users --replace n3 --with n5",
    json=RepairedStoreRow,
)
def repair(
    store: str = STORE_ARGUMENT,
    *,
    replace: str = option("--replace NODE", "Replace this node, which is lost for good."),
    new: str = option("--with NODE", "The node in its place; default: one in another rack."),
    common: CommonOptions,
) -> None:
    """Bring a key-value store up to date on all of its nodes, after one of them was away.

    With --replace another node takes the place of one that is lost for good. Clients read and write
    meanwhile, and a lost node that returns harms nobody. Most nodes of the store have to answer. If the
    command is interrupted, type it again.
    """
    with opened(common.node, [_split(store)[0]]) as place:
        if new and not replace:
            raise InvalidError("--with NODE takes the place of another node. Add --replace NODE.")
        kv_store = _open(place, store)
        moved, by = 0, None
        with waiting("repairing"):
            if replace:
                by = new or _spare(place, kv_store, replace)
                moved = _replaced(place, kv_store, store, replace, by)
            restored, behind = kv_store.repair()
        hosts = list(kv_store.hosts)
        notices = [f"{by} has taken the place of {replace} in {store}"] if replace else []
        notices.append(f"restored {counted(restored, 'replica')} of values on {', '.join(hosts)}")
        if behind and not common.as_json:
            away = ", ".join(sorted(kv_store.away())) or "a node"
            notices.append(
                f"{away} does not answer; if it is lost for good: dios store repair {store} "
                f"--replace {away.partition(',')[0]}"
            )
        row = RepairedStoreRow(store, hosts, restored, behind, replace or None, by, moved)
        common.print_row(row, *notices)


def _replaced(place: CommandContext, kv_store: KeyValueStore, store: str, lost: str, by: str) -> int:
    """Replace a node of a store; InvalidError for a node that it does not have, or that does not exist."""
    if lost not in kv_store.hosts:
        raise InvalidError(f"{store} is not on {lost}; it is on {', '.join(kv_store.hosts)}")
    if by not in {member.name for member in place.node.nodes() if member.usable}:
        raise InvalidError(f"{by} is no node that answers. `dios node ls` lists the nodes.")
    return kv_store.replace(lost, by)


def _spare(place: CommandContext, kv_store: KeyValueStore, lost: str) -> str:
    spares = spare_nodes([host for host in kv_store.hosts if host != lost], place.node.nodes())
    fit = [spare for spare in spares if spare != lost]
    if not fit:
        raise InvalidError(
            "no node is left that could replace it. Add one to the cluster: `dios-node invite`."
        )
    return fit[0]


def _split(store: str) -> tuple[str, str]:
    alias, _, short = store.partition("/")
    if not alias or not short:
        raise InvalidError(f"{store!r} is no store. Give GROUP/STORE, for example papers/users.")
    check_alias(short)
    return alias, short


def _entry(alias: str, short: str) -> str:
    return f"{STORE_ALIAS}{alias}/{short}"


def _open(place: CommandContext, store: str) -> KeyValueStore:
    alias, short = _split(store)
    name = place.keyring.objects.get(_entry(alias, short))
    if name is None:
        raise InvalidError(
            f"your keyring has no store {store!r}. `dios store ls` lists them; `dios store add` adds one "
            "that a program created."
        )
    return open_store(place.node, place.group(alias), name)


def _looked_at(place: CommandContext, store: str) -> StoreRow:
    try:
        return _described(store, _open(place, store))
    except DiosError as error:
        alias, short = _split(store)
        mark = fingerprint(place.keyring.objects[_entry(alias, short)])
        return StoreRow(store, mark, [], [], None, error.message)


def _described(store: str, kv_store: KeyValueStore) -> StoreRow:
    away = sorted(kv_store.away())
    row = StoreRow(store, fingerprint(kv_store.name), list(kv_store.hosts), away, None, "")
    try:
        row.keys = sum(1 for _ in kv_store)
    except UnreachableError as error:
        row.problem = error.message
    return row


def _problems(rows: Iterable[StoreRow]) -> list[str]:
    return [f"{row.store}: {row.problem}" for row in rows if row.problem]
