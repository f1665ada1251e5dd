package config

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/configuration.md instead of comparing it")

// The documentation of settings is made from the table: go test ./internal/config -update
func TestTheConfigurationPageSaysWhatTheTableSays(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# Configuration\n\nEvery setting is a flag of `managoat serve` and a variable of the same name; the flag wins. A blank variable is unset.\nA bad value refuses to start and says which. This page is made from the one table of settings (`internal/config`).\n\n| flag | variable | default | what it is |\n|---|---|---|---|\n")
	for _, s := range Settings {
		variable := "`" + s.Variable() + "`"
		if s.Bare {
			variable += ", `" + strings.TrimPrefix(s.Variable(), "MANAGOAT_") + "`"
		}
		value := "–"
		switch {
		case s.Flag == "data":
			value = "`/var/lib/managoat` as root, else `~/.local/share/managoat`"
		case s.Flag == "runtimes-dir":
			value = "`/var/lib/managoat-runtimes` as root, else `~/.local/share/managoat-runtimes`"
		case s.Default != "":
			value = "`" + s.Default + "`"
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s | %s |\n", s.Flag, variable, value, strings.ReplaceAll(s.Help, "|", "\\|"))
	}
	const page = "../../docs/configuration.md"
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Error("docs/configuration.md is not what the table says: go test ./internal/config -update")
	}
}
