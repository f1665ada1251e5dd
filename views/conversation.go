package views

import "time"

// ConversationsPage lists and searches conversations.
type ConversationsPage struct {
	Page
	Query    string
	Status   string
	Statuses []Option
	Rows     []ConversationRow
	Pager    Pager
}

// ConversationRow is one conversation in a list.
type ConversationRow struct {
	ID        string
	Title     Link
	Agent     Link
	Workspace Link
	Runtime   string
	Status    Badge
	Why       string // what it waits for, or what it failed of
	Turns     int
	ActiveAt  time.Time
}

// ConversationRowID is the id of a conversation's row in the list, for streams.
func ConversationRowID(id string) string { return "c-" + slug(id) }

// ConversationFormPage starts a conversation.
type ConversationFormPage struct {
	Page
	Start StartForm
}

// ConversationPage is one conversation.
type ConversationPage struct {
	Page
	URL        string
	Head       TurnState
	Agent      Link
	Runtime    string
	Workspace  Link
	Cwd        string
	EarlierURL string // of the rows before the first one shown; "" when these are all
	NewestURL  string // of the newest rows, when these are older ones
	Transcript *Transcript
	Queue      []Queued
	Working    Working
	Composer   Composer
	Facts      Facts
	Manage     Manage
}

// TurnState is the head of the page: what the conversation is in.
type TurnState struct {
	Name         string
	State        Badge
	InterruptURL string // "" when nothing runs
	Turn         int
}

// Working says what a running turn waits for, under the last row; empty Text shows nothing.
type Working struct {
	Text  string // "Waiting for the setup: packages"
	Asked string // the prompt of a turn that has not begun, and so is not in the transcript yet
	Link  Link   // to what it waits for
	Since time.Time
}

// Queued is a prompt that waits behind the turn that runs, or is next.
type Queued struct {
	Turn        int
	Behind      int // the turn before it
	Text        string
	WithdrawURL string
}

// Composer is where a person writes.
type Composer struct {
	Action      string
	Text        string // what was typed, after a refusal without JavaScript
	Closed      string // why nothing can be sent any more: "This conversation has ended."
	Placeholder string
	Note        *Problem // why the last prompt was refused
	Busy        bool     // a turn runs; what is sent waits behind it
}

// Facts is the side panel.
type Facts struct {
	Turn   int
	Items  []Fact
	Files  []FileChange
	Egress []Fact
	Links  []Link
}

// Fact is a name with its value.
type Fact struct {
	Name  string
	Value Link
	Bad   bool
}

// FileChange is a file that the turn changed.
type FileChange struct {
	File           Link
	Added, Deleted int
}

// Manage is what a person may do with the conversation besides talking.
type Manage struct {
	RenameURL    string
	TerminateURL string // "" when it has ended
	DeleteURL    string
	Title        string // what was typed, after a refusal
	Errors       Errors
}
