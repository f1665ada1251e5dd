package conversation

// awaitRecord waits a moment for what the machine's recording shell saw of a call's command.
func (p *process) awaitRecord(*toolCall) {}
