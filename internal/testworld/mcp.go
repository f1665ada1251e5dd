package testworld

// MCPServer is a server of the Model Context Protocol on its standard streams, for node. It has one tool, look_up, which answers
// with the title that it is asked for, the server's arguments, and its variable SHELF.
const MCPServer = `const lines = require("readline").createInterface({ input: process.stdin });
const answer = (id, result) => process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id, result }) + "\n");
lines.on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  switch (method) {
    case "initialize":
      return answer(id, { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "shelf", version: "1" } });
    case "tools/list":
      return answer(id, { tools: [{ name: "look_up", description: "Looks a title up.", inputSchema: { type: "object", properties: { title: { type: "string" } } } }] });
    case "tools/call":
      return answer(id, { content: [{ type: "text", text: "found " + params.arguments.title + " " + process.argv.slice(2).join(" ") + " " + process.env.SHELF }] });
  }
  if (id !== undefined) process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id, error: { code: -32601, message: "unknown" } }) + "\n");
});
`
