package conversation

import "managoat/internal/refusal"

// meanings are the codes of turns, and of what belongs to them, in words.
var meanings = map[string]string{
	CodeInternal:          "A fault of the server; its log has the cause.",
	CodeRuntimeTemplate:   "The config home could not be made from the runtime template.",
	CodeNotInstalled:      "The machine does not find the runtime's command, or its adapter could not be installed.",
	CodeMCPVariables:      "Variables of the agent's MCP servers have no value.",
	CodeMCPInvalid:        "The agent's MCP servers are not valid with the values of their variables.",
	CodeMCPTransport:      "The runtime takes no MCP servers of that type.",
	CodeAdapterCrashed:    "The runtime ended by itself.",
	CodeAdapterSilent:     "The runtime did not answer in time.",
	CodeAdapterProtocol:   "The runtime does not speak the protocol as it must.",
	CodeOutOfMemory:       "The machine ran out of memory, and the kernel ended the runtime.",
	CodeAgentError:        "The agent answered the prompt with an error.",
	CodeStopped:           "The agent stopped for a reason that is not the end of its turn.",
	CodeImagesUnsupported: "The runtime takes no images.",
	CodeMachineGone:       "The connection to the machine was lost.",
	CodeMachineLostAgain:  "The machine was lost, soon after it had been built again for the conversation.",
	CodeDirectory:         "The working directory leads out of the folders that may be used.",
	CodeDisk:              "The machine's disk is full.",

	ByUser:            "Asked for by a person or a key.",
	ByWithdrawal:      "It was taken back before it began.",
	ByTermination:     "The conversation was ended.",
	ByInstanceRestart: "The server restarted, and nothing of the turn could be found.",
	ByEgressRestart:   "The egress process ended, and with it the model's answer.",
	ByParking:         "The machine parked, at the end of its lifetime.",
	ByDestruction:     "The machine is gone with its disk: it was rebuilt, or lost.",

	autoAllow: "Allowed by the policy.",
	cancelled: "Cancelled: its turn was interrupted.",

	machineLost:       "The machine was lost with its disk.",
	noActiveSession:   "The runtime does not run any more.",
	machineNotReached: "The machine does not answer.",
	machineRestarted:  "The machine was restarted meanwhile.",
}

// Meaning is a sentence for a code that something of a turn carries: its error, the reason of its end or of a stage, the
// outcome of a permission request. "" when the code is none of those.
func Meaning(code string) string {
	if m := meanings[code]; m != "" {
		return m
	}
	return refusal.Code(code).Meaning()
}
