package store

import (
	"strings"
	"testing"

	"managoat/queries"
)

func TestARefusalToDeleteASourceCountsWhatElseWasMadeFromIt(t *testing.T) {
	t.Parallel()
	made := func(names ...string) (rows []queries.WorkspacesOfSourceRow) {
		for _, name := range names {
			rows = append(rows, queries.WorkspacesOfSourceRow{Name: name})
		}
		return rows
	}
	for want, rows := range map[string][]queries.WorkspacesOfSourceRow{
		`Workspace "a" was made from this vault. Delete`:                       made("a"),
		`Workspace "a" was made from this vault, and so was 1 other. Delete`:   made("a", "b"),
		`Workspace "a" was made from this vault, and so were 2 others. Delete`: made("a", "b", "c"),
	} {
		if err := InUse("vault", rows); !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %s", err, want)
		}
	}
}
