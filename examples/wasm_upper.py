"""A WebAssembly module as a program: it writes a text in capital letters.

Run ``python examples/wasm_upper.py FILE`` where ``pip install 'dios-space[wasm]'`` is done; without a node
the program gets a private one. The module knows nothing of DIOS: it opens ``/inputs/text`` and writes
``/outputs/loud``, as any WASI program that a compiler for C, Rust or Go makes. See docs/python-client.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import wasmtime

import dios

UPPER = """
(module
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 0) "\\00\\00\\01\\00\\00\\00\\01\\00") ;; a buffer: 64 KiB from 65,536 on
  (data (i32.const 16) "text")
  (data (i32.const 24) "loud")
  (func (export "_start") (local $size i32) (local $at i32) (local $byte i32)
    ;; Descriptor 3 is /inputs, and 6 is /outputs. The numbers of both files go to 32 and 36.
    (if (call $open (i32.const 3) (i32.const 0) (i32.const 16) (i32.const 4) (i32.const 0)
          (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 32)) (then unreachable))
    (if (call $open (i32.const 6) (i32.const 0) (i32.const 24) (i32.const 4) (i32.const 1)
          (i64.const 64) (i64.const 0) (i32.const 0) (i32.const 36)) (then unreachable))
    (loop $block
      (i32.store (i32.const 4) (i32.const 65536))
      (if (call $read (i32.load (i32.const 32)) (i32.const 0) (i32.const 1) (i32.const 40))
        (then unreachable))
      (local.set $size (i32.load (i32.const 40)))
      (if (i32.eqz (local.get $size)) (then return))
      (local.set $at (i32.const 0))
      (loop $next
        (local.set $byte (i32.load8_u offset=65536 (local.get $at)))
        (if (i32.lt_u (i32.sub (local.get $byte) (i32.const 97)) (i32.const 26))
          (then (i32.store8 offset=65536 (local.get $at) (i32.sub (local.get $byte) (i32.const 32)))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br_if $next (i32.lt_u (local.get $at) (local.get $size))))
      (i32.store (i32.const 4) (local.get $size))
      (if (call $write (i32.load (i32.const 36)) (i32.const 0) (i32.const 1) (i32.const 40))
        (then unreachable))
      (br $block))))
"""


def main() -> None:
    """Run the module on the file that the command line names, and print its output."""
    module = bytes(wasmtime.wat2wasm(UPPER))
    with (
        dios.connect(start=True) as node,
        node.create(dios.SHMEM_BLOB, data=Path(sys.argv[1]).read_bytes()) as text,
        node.create(dios.SHMEM_BLOB) as loud,
        node.run(
            module,
            inputs={"text": text.restrict("read")},
            outputs={"loud": loud.restrict("read", "write")},
            label="upper.wasm",
        ) as task,
    ):
        status = task.wait()
        if not status.ok:
            sys.exit(f"the module failed: {status.detail}")
        sys.stdout.write(loud.read_bytes().decode())


if __name__ == "__main__":
    main()
