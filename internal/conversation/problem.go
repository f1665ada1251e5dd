package conversation

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"managoat/internal/acp"
	"managoat/internal/refusal"
	"managoat/internal/transcript"
	"managoat/sandbox/guest"
)

// Codes of a turn's error, beside those of refusals that end a turn (setup_failed, sandbox_provider_disabled, …). Meaning says
// what each is.
const (
	CodeInternal          = "internal"
	CodeRuntimeTemplate   = "runtime_template"
	CodeNotInstalled      = "runtime_not_installed"
	CodeMCPVariables      = "mcp_variables_missing"
	CodeMCPInvalid        = "mcp_server_invalid"
	CodeMCPTransport      = "mcp_not_supported"
	CodeAdapterCrashed    = "adapter_crashed"
	CodeAdapterSilent     = "adapter_silent"
	CodeAdapterProtocol   = "adapter_protocol"
	CodeOutOfMemory       = "out_of_memory"
	CodeAgentError        = "agent_error"
	CodeStopped           = "stopped"
	CodeImagesUnsupported = "images_not_supported"
	CodeMachineGone       = "sandbox_unreachable"
	CodeMachineLostAgain  = "machine_lost_again"
	CodeDirectory         = "cwd_not_allowed"
	CodeDisk              = "disk_full"
)

// failure is an error that ends a turn with a problem that people see.
type failure struct {
	problem  Problem
	exitCode *int
	// ends: the conversation cannot go on either, when its machine is its own.
	ends  bool
	cause error
}

func (f *failure) Error() string {
	if f.cause != nil {
		return fmt.Sprintf("%s: %s: %v", f.problem.Code, f.problem.Message, f.cause)
	}
	return f.problem.Code + ": " + f.problem.Message
}

func (f *failure) Unwrap() error { return f.cause }

func fail(code, format string, args ...any) *failure {
	return &failure{problem: Problem{Code: code, Message: fmt.Sprintf(format, args...), Fields: map[string]any{}}}
}

func (f *failure) with(field string, value any) *failure {
	f.problem.Fields[field] = value
	return f
}

func (f *failure) because(err error) *failure {
	f.cause = err
	return f
}

// failureOf makes an error into what a turn shows of it.
func failureOf(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	if r, ok := refusal.As(err); ok {
		return &failure{problem: Problem{Code: string(r.Code), Message: r.Message, Fields: maps.Clone(r.Fields)}, ends: r.Code == refusal.SetupFailed, cause: err}
	}
	if errors.Is(err, guest.ErrGone) {
		return fail(CodeMachineGone, "The connection to the machine was lost. Its disk is untouched: send the prompt again.").because(err)
	}
	var file *guest.FileError
	if errors.As(err, &file) && file.Code == guest.ErrDiskFull {
		return fail(CodeDisk, "The machine's disk is full: %s could not be written. Remove files and send the prompt again.", file.Path).because(err)
	}
	var agent *acp.Error
	if errors.As(err, &agent) {
		return agentError(agent)
	}
	return fail(CodeInternal, "Something went wrong on the server. Its log has the cause.").because(err)
}

// authRequired is the Agent Client Protocol's code for an agent that is not let in, by whom it needs.
const authRequired = -32000

// agentError is an error that the agent answered with, in its own words.
func agentError(e *acp.Error) *failure {
	f := fail(CodeAgentError, "The agent answered with an error: %s", e.Message).with("agent_code", e.Code)
	if e.Code == authRequired {
		f.problem.Message += ". The model's provider does not take the key, or the runtime wants a login of its own. Save a credential that works in the settings, under inference credentials, and start a new conversation."
	}
	if len(e.Data) > 0 && string(e.Data) != "null" {
		f.with("data", json.RawMessage(e.Data))
	}
	return f.because(e)
}

// clean passes what a machine said in a problem through the gate.
func (p Problem) clean(g *transcript.Gate) Problem {
	b, err := json.Marshal(p)
	if err != nil {
		return Problem{Code: p.Code, Message: g.String(p.Message)}
	}
	var out Problem
	if json.Unmarshal(g.JSON(b), &out) != nil {
		return Problem{Code: p.Code, Message: g.String(p.Message)}
	}
	return out
}

// ended says how a runtime's process ended.
func exited(e guest.Exit, stderr string) *failure {
	var f *failure
	switch {
	case e.OutOfMemory:
		f = fail(CodeOutOfMemory, "The machine ran out of memory, and the kernel ended the runtime. Give the machine more memory, or run less in it at once.")
	case e.StartError != "":
		f = fail(CodeNotInstalled, "The machine could not start the runtime: %s.", e.StartError)
	case e.Signal != "":
		f = fail(CodeAdapterCrashed, "The runtime was ended by %s.", e.Signal).with("signal", e.Signal)
	default:
		f = fail(CodeAdapterCrashed, "The runtime ended with exit code %d.", e.Code)
	}
	if e.Signal == "" && e.StartError == "" {
		code := e.Code
		f.exitCode = &code
		f.with("exit_code", code)
	}
	if stderr = strings.TrimSpace(stderr); stderr != "" {
		f.with("stderr", stderr)
	}
	return f
}

// notFound is what a shell exits with when it does not find a command, and when it may not run it.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)
