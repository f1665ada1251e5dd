package db

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
)

// What an error says about a PostgreSQL that is away: that it is (Away), that it did not take a transaction (NotTaken), that
// a write which can be repeated may pass later (Transient).

// awayError is an error of the way to PostgreSQL.
type awayError struct{ err error }

func (e *awayError) Error() string { return e.err.Error() }
func (e *awayError) Unwrap() error { return e.err }

// Away tells whether err says that PostgreSQL could not be reached, stops or starts, or that the connection to it broke. It
// may have done what it was asked for, if that was a commit.
func Away(err error) bool {
	var away *awayError
	var connect *pgconn.ConnectError
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, context.Canceled):
		return false // nobody waited to see
	case errors.As(err, &pg):
		return strings.HasPrefix(pg.Code, "08") || stops(pg)
	case errors.As(err, &away), errors.As(err, &connect):
		return true
	}
	return false
}

// NotTaken tells whether err says that PostgreSQL did not take a transaction because it stops, starts or is not there. An
// error of which this cannot be told may come from a commit that happened.
func NotTaken(err error) bool {
	var connect *pgconn.ConnectError
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &connect), pgconn.SafeToRetry(err):
		return true
	case errors.As(err, &pg):
		return stops(pg)
	}
	return false
}

// stops tells that PostgreSQL stops or starts.
func stops(pg *pgconn.PgError) bool {
	return pg.Code == pgerrcode.AdminShutdown || pg.Code == pgerrcode.CrashShutdown || pg.Code == pgerrcode.CannotConnectNow
}

// Transient tells that a write failed because PostgreSQL was away or busy, so that the same write may pass later. It may have
// passed already: it has to be one that can be repeated.
func Transient(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code[:2] {
		case "08", "40", "53", "57": // connection, rollback (deadlock), resources, operator (shutdown)
			return true
		}
		return false
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}
