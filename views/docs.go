package views

import "time"

// DocsPage is the API's reference.
type DocsPage struct {
	Now     time.Time
	Version string
	Base    string // where this server was reached: "https://managoat.example"
	Groups  []DocsGroup
	Types   []DocsType
	Codes   []DocsCode
}

// DocsGroup is a resource with its operations.
type DocsGroup struct {
	Name       string
	Operations []DocsOperation
}

// ID is the group's anchor.
func (g DocsGroup) ID() string { return "group-" + slug(g.Name) }

// DocsOperation is one call.
type DocsOperation struct {
	ID      string // its anchor, and its operationId
	Method  string
	Path    string
	Summary string
	Note    string // what else is to know; "" for nothing
	Access  string // "public", "full key", "full or sandbox key"
	Params  []DocsField
	Body    []DocsField
	Status  int        // of success
	Answer  DocsAnswer // of success
}

// DocsAnswer is what a call that succeeded answers: Before, the type that it holds, After.
type DocsAnswer struct {
	Before, After string
	Type          string // of DocsPage.Types; "" when Before says it all
}

// DocsType is an object that answers hold.
type DocsType struct {
	Name   string
	Fields []DocsField
}

// DocsField is a parameter, or a field of a body or an answer.
type DocsField struct {
	Name   string // dotted, as in the errors of a refusal: "packages.apt", "repositories[].url"
	In     string // of parameters: "path", "query", "header"
	Kind   string // "text", "list of text", "number"; before the name of Type where there is one
	Type   string // of DocsPage.Types
	Doc    string
	Limits string // "1 to 500; default 100"
}

// DocsCode is a code that an answer of no can carry.
type DocsCode struct {
	Code    string
	Status  int
	Meaning string
	Fields  []string
}

// methodClass is the colour of a method: reading, making, changing, ending. The word stands there too.
func methodClass(method string) string {
	switch method {
	case "GET":
		return "run"
	case "POST":
		return "ok"
	case "DELETE":
		return "fail"
	}
	return "wait"
}

func typeID(name string) string { return "type-" + slug(name) }
func codeID(code string) string { return "code-" + code }
