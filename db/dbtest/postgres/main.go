// Command postgres starts the PostgreSQL that the tests of all packages share (MANAGOAT_TEST_PG), prints its URL, and
// stops it when standard input ends: whoever started it holds the other end.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"managoat/db/dbtest"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "PostgreSQL for tests:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	dir, err := dbtest.Directory()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	pg, err := dbtest.Serve(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.Stop(ctx)) }()
	url, err := pg.OwnerURL(ctx, "postgres")
	if err != nil {
		return err
	}
	fmt.Println(url)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
