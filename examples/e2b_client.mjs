// A program for E2B, which knows nothing of DIOS: `dios sandbox serve` runs its code as well.
//
//   npm install e2b @e2b/code-interpreter
//   E2B_API_URL=http://127.0.0.1:7490 E2B_SANDBOX_URL=http://127.0.0.1:7490 E2B_API_KEY=e2b_... \
//       node e2b_client.mjs
import { Sandbox as Interpreter } from '@e2b/code-interpreter'
import { Sandbox } from 'e2b'

const code = `
print("hello")
numbers = [2 * number for number in (1, 2, 3)]
with open("sum.txt", "w") as file:
    file.write(str(sum(numbers)))
numbers
`
const box = await Interpreter.create()
const done = await box.runCode(code, { onStdout: message => process.stdout.write(message.line) })
console.log(done.text)
for (const file of await box.files.list('.')) if (file.name.endsWith('.txt')) console.log(file.name)
console.log(await box.files.read('sum.txt'))
await box.kill()

// With a template "base" that has an image.
const machine = await Sandbox.create()
const command = await machine.commands.run('echo out')
console.log(command.stdout.trim(), command.exitCode)
await machine.kill()
