package views

import "time"

// SetupPage is the first page of a new instance: it makes the first account and its owner.
type SetupPage struct {
	Now     time.Time
	Token   string // of the one-time link; it goes back with the form
	Account string
	Email   string
	Errors  Errors
}

// LinkGonePage says that a set-up link cannot be used.
type LinkGonePage struct {
	Now    time.Time
	Reason string // one sentence: used, expired, unknown
}

// SignInPage asks who one is.
type SignInPage struct {
	Now    time.Time
	Email  string
	Next   string // where to go afterwards: a path of this console
	First  bool   // nobody has an account here yet
	Flash  *Flash
	Errors Errors
}

// ErrorPage is a page that could not be shown, with what is known about why.
type ErrorPage struct {
	Page
	Status    int
	Heading   string // "Not found"
	Problem   Problem
	SignedIn  bool
	Back      Link
	Technical bool // a fault of the server: the diagnostics are worth copying
}
