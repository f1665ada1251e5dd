package runtime

// Claude is the runtime's name.
const Claude = "claude"
