"""A program for E2B, which knows nothing of DIOS: `dios sandbox serve` runs its code as well.

With a key of `dios sandbox key add laptop`, and with E2B_API_URL and E2B_SANDBOX_URL set to the address that
`dios sandbox serve` prints, and E2B_API_KEY to the key: python examples/e2b_client.py
"""

from __future__ import annotations

from e2b_code_interpreter import Sandbox

CODE = """
print("hello")
numbers = [2 * number for number in (1, 2, 3)]
with open("sum.txt", "w") as file:
    file.write(str(sum(numbers)))
numbers
"""


def main() -> None:
    """Run code in a sandbox, and read the file that it has written."""
    with Sandbox.create() as box:
        done = box.run_code(CODE, on_stdout=lambda message: print(message.line, end=""))
        print(done.text)
        for file in box.files.list("."):
            if file.name.endswith(".txt"):
                print(file.name)
        print(box.files.read("sum.txt"))


if __name__ == "__main__":
    main()
