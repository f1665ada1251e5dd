package environment_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/environment"
	"managoat/internal/identity/identitytest"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
)

var ctx = context.Background()

func want(t *testing.T, err error, code refusal.Code) *refusal.Refusal {
	t.Helper()
	r, ok := refusal.As(err)
	if !ok || r.Code != code {
		t.Fatalf("got %v, want the refusal %s", err, code)
	}
	return r
}

func service(d *identitytest.Instance) *environment.Service {
	return environment.NewService(d.DB, d.Keys, nil)
}

func named(name string) environment.Input {
	in := environment.New()
	in.Name = name
	return in
}

func patch(body string) func(*environment.Input) error {
	return func(in *environment.Input) error { return input.Decode([]byte(body), in) }
}

func TestAnEnvironmentIsKeptAsItWasWritten(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	s := service(d)
	in := environment.New()
	if err := input.Decode([]byte(`{
		"name": " node 22 ", "packages": {"apt": ["git", "git", "gcc=4:12.2.0-3"], "npm": ["@acme/cli@^1.2.0"], "pip": ["uvicorn[standard]==0.30.1"]},
		"env_vars": {"NODE_ENV": "production", "EMPTY": "", "LINES": "a\r\nb"}, "setup_script": "set -e\r\nnpm ci\r\n", "setup_timeout_seconds": 900,
		"networking_type": "limited", "networking_config": {"allowed_hosts": ["packages.example.com", "*.Example.com", "[2001:db8::1]:8443"]},
		"repositories": [{"url": "https://github.com/acme/storefront.git", "mount_path": "/home/sprite/storefront", "ref": "main", "secret_key": "GITHUB_TOKEN"}],
		"metadata": {"team": {"name": "web", "size": 3}}}`), &in); err != nil {
		t.Fatal(err)
	}
	made, err := s.Create(ctx, a.Actor, in)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Get(ctx, a.Actor, made.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "node 22" || got.SetupScript != "set -e\nnpm ci\n" || got.EnvVars["LINES"] != "a\r\nb" || !slices.Equal(got.Packages.Apt, []string{"git", "gcc=4:12.2.0-3"}) {
		t.Errorf("kept as %+v", got)
	}
	asMade, _ := json.Marshal(made)
	asGot, _ := json.Marshal(got)
	if string(asMade) != string(asGot) {
		t.Errorf("made\n%s\nand kept\n%s", asMade, asGot)
	}
	_, err = s.Get(ctx, b.Actor, made.ID)
	want(t, err, refusal.NotFound)
	_, err = s.Get(ctx, a.Actor, uuid.New())
	want(t, err, refusal.NotFound)

	plain, err := s.Create(ctx, a.Actor, named("plain"))
	if err != nil {
		t.Fatal(err)
	}
	if out, _ := json.Marshal(plain); strings.Contains(string(out), "null") {
		t.Errorf("lists and maps are never null: %s", out)
	}
	if plain.SetupTimeoutSeconds != 120 || plain.NetworkingType != "unrestricted" {
		t.Errorf("defaults are %+v", plain.Input)
	}
}

func TestWhatCannotBeBuiltIsRefusedByField(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 300<<10)
	repository := func(url, mount, ref string) string {
		b, _ := json.Marshal([]environment.Repository{{URL: url, MountPath: mount, Ref: ref}})
		return `{"repositories":` + string(b) + `}`
	}
	good := "https://git.example.com/a.git"
	cases := map[string]struct{ body, field string }{
		"no name":                         {`{"name":""}`, "name"},
		"a name of two lines":             {`{"name":"a\nb"}`, "name"},
		"a name with NUL":                 {`{"name":"a\u0000"}`, "name"},
		"a long name":                     {`{"name":"` + strings.Repeat("ü", 201) + `"}`, "name"},
		"an unknown field":                {`{"networking":"limited"}`, "networking"},
		"an unknown networking field":     {`{"networking_config":{"allowed_host":["a.com"]}}`, "networking_config.allowed_host"},
		"a manager that setup lacks":      {`{"packages":{"cargo":["ripgrep"]}}`, "packages.cargo"},
		"an option as an apt package":     {`{"packages":{"apt":["-o=Dpkg::Options::=x"]}}`, "packages.apt"},
		"a file as an apt package":        {`{"packages":{"apt":["./evil.deb"]}}`, "packages.apt"},
		"a command as an apt package":     {`{"packages":{"apt":["git;reboot"]}}`, "packages.apt"},
		"a substitution as a package":     {`{"packages":{"npm":["$(id)"]}}`, "packages.npm"},
		"an address as an npm package":    {`{"packages":{"npm":["git+ssh://evil/x"]}}`, "packages.npm"},
		"a path as an npm package":        {`{"packages":{"npm":["../x"]}}`, "packages.npm"},
		"an option as an npm package":     {`{"packages":{"npm":["--registry=http://evil"]}}`, "packages.npm"},
		"a redirection as a pip package":  {`{"packages":{"pip":["flask>=2"]}}`, "packages.pip"},
		"a file as a pip package":         {`{"packages":{"pip":["-rrequirements.txt"]}}`, "packages.pip"},
		"an address as a pip package":     {`{"packages":{"pip":["x @ https://evil/x.whl"]}}`, "packages.pip"},
		"an empty package":                {`{"packages":{"pip":[""]}}`, "packages.pip"},
		"a package of two lines":          {`{"packages":{"apt":["git\ncurl"]}}`, "packages.apt"},
		"too many packages":               {`{"packages":{"apt":[` + strings.TrimSuffix(strings.Repeat(`"a",`, 201), ",") + `]}}`, "packages.apt"},
		"a variable that is not a name":   {`{"env_vars":{"a-b":"x"}}`, "env_vars"},
		"a reserved variable":             {`{"env_vars":{"LD_PRELOAD":"x"}}`, "env_vars"},
		"a reserved proxy variable":       {`{"env_vars":{"https_proxy":"x"}}`, "env_vars"},
		"a variable with NUL":             {`{"env_vars":{"A":"\u0000"}}`, "env_vars.A"},
		"a huge variable":                 {`{"env_vars":{"A":"` + long[:40<<10] + `"}}`, "env_vars.A"},
		"a variable that is a number":     {`{"env_vars":{"A":1}}`, "env_vars"},
		"a script with NUL":               {`{"setup_script":"echo \u0000"}`, "setup_script"},
		"a huge script":                   {`{"setup_script":"` + long + `"}`, "setup_script"},
		"no time at all":                  {`{"setup_timeout_seconds":0}`, "setup_timeout_seconds"},
		"too much time":                   {`{"setup_timeout_seconds":901}`, "setup_timeout_seconds"},
		"time that is null":               {`{"setup_timeout_seconds":null}`, "setup_timeout_seconds"},
		"half a second":                   {`{"setup_timeout_seconds":1.5}`, "setup_timeout_seconds"},
		"an unknown networking type":      {`{"networking_type":"limitted"}`, "networking_type"},
		"an address as an allowed host":   {`{"networking_config":{"allowed_hosts":["https://a.com/"]}}`, "networking_config.allowed_hosts"},
		"every host":                      {`{"networking_config":{"allowed_hosts":["*"]}}`, "networking_config.allowed_hosts"},
		"a wildcard in the middle":        {`{"networking_config":{"allowed_hosts":["a.*.com"]}}`, "networking_config.allowed_hosts"},
		"an odd notation of an address":   {`{"networking_config":{"allowed_hosts":["0x7f000001"]}}`, "networking_config.allowed_hosts"},
		"an empty allowed host":           {`{"networking_config":{"allowed_hosts":[""]}}`, "networking_config.allowed_hosts"},
		"a repository over http":          {repository("http://git.example.com/a", "/home/sprite/a", ""), "repositories[0].url"},
		"a repository over ssh":           {repository("ssh://git@example.com/a", "/home/sprite/a", ""), "repositories[0].url"},
		"a repository of git's ext":       {repository("ext::sh -c id", "/home/sprite/a", ""), "repositories[0].url"},
		"an scp-like repository":          {repository("git@example.com:a/b", "/home/sprite/a", ""), "repositories[0].url"},
		"a token in an address":           {repository("https://x:t0ken@example.com/a", "/home/sprite/a", ""), "repositories[0].url"},
		"a query in an address":           {repository("https://example.com/a?token=t0ken", "/home/sprite/a", ""), "repositories[0].url"},
		"an address without a path":       {repository("https://example.com/", "/home/sprite/a", ""), "repositories[0].url"},
		"an address without a host":       {repository("https:///a", "/home/sprite/a", ""), "repositories[0].url"},
		"an address with a line end":      {repository("https://example.com/a\nb", "/home/sprite/a", ""), "repositories[0].url"},
		"an impossible port":              {repository("https://example.com:70000/a", "/home/sprite/a", ""), "repositories[0].url"},
		"a relative mount":                {repository(good, "app", ""), "repositories[0].mount_path"},
		"a mount of home":                 {repository(good, "~/app", ""), "repositories[0].mount_path"},
		"an escaping mount":               {repository(good, "/home/sprite/../../etc", ""), "repositories[0].mount_path"},
		"a mount with a slash at the end": {repository(good, "/home/sprite/app/", ""), "repositories[0].mount_path"},
		"a mount of the whole machine":    {repository(good, "/", ""), "repositories[0].mount_path"},
		"a mount of the home folder":      {repository(good, "/home/sprite", ""), "repositories[0].mount_path"},
		"a mount in the system":           {repository(good, "/etc/app", ""), "repositories[0].mount_path"},
		"a mount in the product's":        {repository(good, "/home/sprite/.managoat/c", ""), "repositories[0].mount_path"},
		"a mount with NUL":                {repository(good, "/home/sprite/a\x00b", ""), "repositories[0].mount_path"},
		"a ref that is an option":         {repository(good, "/home/sprite/a", "--upload-pack=id"), "repositories[0].ref"},
		"a ref that is a range":           {repository(good, "/home/sprite/a", "a..b"), "repositories[0].ref"},
		"a ref with a space":              {repository(good, "/home/sprite/a", "a b"), "repositories[0].ref"},
		"a ref of a lock":                 {repository(good, "/home/sprite/a", "a/b.lock"), "repositories[0].ref"},
		"an unknown repository field":     {`{"repositories":[{"url":"` + good + `","mount_path":"/a","branch":"x"}]}`, "repositories.branch"},
		"a secret key that is no name":    {`{"repositories":[{"url":"` + good + `","mount_path":"/home/sprite/a","secret_key":"a-b"}]}`, "repositories[0].secret_key"},
		"two mounts at one place":         {`{"repositories":[{"url":"` + good + `","mount_path":"/home/sprite/a"},{"url":"` + good + `","mount_path":"/home/sprite/a"}]}`, "repositories[1].mount_path"},
		"a mount in another":              {`{"repositories":[{"url":"` + good + `","mount_path":"/home/sprite/a/b"},{"url":"` + good + `","mount_path":"/home/sprite/a"}]}`, "repositories[1].mount_path"},
		"metadata that is a list":         {`{"metadata":[]}`, "metadata"},
		"metadata with NUL":               {`{"metadata":{"a":"\u0000"}}`, "metadata"},
		"huge metadata":                   {`{"metadata":{"a":"` + long[:20<<10] + `"}}`, "metadata"},
	}
	d := identitytest.New(t)
	a := d.Account(t)
	s := service(d)
	kept, err := s.Create(ctx, a.Actor, named("kept"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range cases {
		in := named("new")
		err := patch(c.body)(&in)
		if err == nil {
			_, err = s.Create(ctx, a.Actor, in)
		}
		_, updated := s.Update(ctx, a.Actor, kept.ID, patch(c.body))
		for _, err := range []error{err, updated} {
			fields := refusal.FieldErrors(err)
			if !refusal.Is(err, refusal.ValidationFailed) || len(fields[c.field]) == 0 {
				t.Errorf("%s: %v, fields %v, want %s", name, err, slices.Sorted(maps.Keys(fields)), c.field)
			}
			if strings.Contains(fmt.Sprint(err, fields), "t0ken") {
				t.Errorf("%s: the refusal repeats a token", name)
			}
		}
	}
	list, err := s.List(ctx, a.Actor, input.Page{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("what was refused was kept: %+v, %v", list, err)
	}
	if got := list.Items[0]; fmt.Sprint(got.Input) != fmt.Sprint(kept.Input) {
		t.Errorf("what was refused changed it: %+v", got)
	}
}

func TestGoodPackagesMountsAndRefsAreTaken(t *testing.T) {
	t.Parallel()
	in := named("x")
	in.Packages = environment.Packages{
		Apt: []string{"libssl-dev", "g++", "libc6:amd64", "nodejs=22.1.0-1nodesource1", "linux-image-6.1"},
		Npm: []string{"typescript", "@types/node", "@acme/a.b@1.0.0-rc.1", "yarn@~1.22.0", "pnpm@latest", "JSONStream"},
		Pip: []string{"requests", "Django==5.0", "torch~=2.3", "apache-airflow[postgres,s3]==2.9.1"},
	}
	for i, mount := range []string{"/home/sprite/app", "/workspace/app", "/srv/app", "/opt/app", "/var/www/app", "/home/sprite/with space/ü"} {
		in.Repositories = append(in.Repositories, environment.Repository{URL: "https://git.example.com:8443/a/b.git", MountPath: mount,
			Ref: []string{"", "main", "feature/x-1", "v1.2.3", "9fceb02d0ae598e95dc970b74767f19372d61af8", "ümlaut"}[i]})
	}
	in.NetworkingConfig.AllowedHosts = []string{"a.com", "*.a.com", "a.com:8443", "192.0.2.1", "2001:db8::1", "[2001:db8::1]:443", "münchen.example"}
	if err := in.Validate(); err != nil {
		t.Fatal(err, refusal.FieldErrors(err))
	}
}

func TestNamesAreUniqueInAnAccountAndTellNothingOfOthers(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	s := service(d)
	one, err := s.Create(ctx, a.Actor, named("node"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Create(ctx, a.Actor, named(" node "))
	if r := want(t, err, refusal.NameTaken); refusal.FieldErrors(r)["name"] == nil {
		t.Errorf("names no field: %v", r)
	}
	if _, err := s.Create(ctx, b.Actor, named("node")); err != nil {
		t.Errorf("another account's name stood in the way: %v", err)
	}
	two, err := s.Create(ctx, a.Actor, named("go"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Update(ctx, a.Actor, two.ID, patch(`{"name":"node"}`))
	want(t, err, refusal.NameTaken)
	if err := s.Delete(ctx, a.Actor, one.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(ctx, a.Actor, two.ID, patch(`{"name":"node"}`)); err != nil {
		t.Errorf("a deleted environment's name is not free: %v", err)
	}
}

func TestListsArePagedByNameWithinTheAccount(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	s := service(d)
	var names []string
	for i := range 7 {
		name := fmt.Sprintf("env-%d", 6-i)
		names = append(names, name)
		if _, err := s.Create(ctx, a.Actor, named(name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Create(ctx, b.Actor, named("env-foreign")); err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	var got []string
	page := input.Page{Limit: 3}
	for range 10 {
		list, err := s.List(ctx, a.Actor, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list.Items {
			got = append(got, e.Name)
		}
		if !list.HasMore {
			break
		}
		page.Cursor = list.Next
	}
	if !slices.Equal(got, names) {
		t.Errorf("paged %v", got)
	}
}

// The hook gets the built fields that changed, by name, in the update's transaction, and what it returns runs after it.
func TestAnUpdateTellsWhichBuiltFieldsChanged(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	var told [][]string
	announced := 0
	var refuse error
	s := environment.NewService(d.DB, d.Keys, func(_ context.Context, tx db.Tx, tenantID, id uuid.UUID, changed []string) error {
		if tenantID != a.TenantID {
			t.Errorf("told of account %s", tenantID)
		}
		if row, err := tx.Environment(ctx, id); err != nil || row.Environment.ID != id {
			t.Errorf("the transaction does not see the environment: %v", err)
		}
		told = append(told, changed)
		tx.OnCommit(func() { announced++ })
		return refuse
	})
	in := named("node")
	in.Packages.Apt = []string{"git", "curl"}
	in.EnvVars = map[string]string{"A": "1"}
	in.NetworkingConfig.AllowedHosts = []string{"a.com", "b.com"}
	in.Repositories = []environment.Repository{{URL: "https://x.example/a", MountPath: "/home/sprite/a"}, {URL: "https://x.example/b", MountPath: "/home/sprite/b"}}
	e, err := s.Create(ctx, a.Actor, in)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		body string
		want []string // nil: not told
	}{
		{`{"name":"other","metadata":{"a":1}}`, nil},
		{`{"packages":{"apt":["curl","git"]}}`, nil},
		{`{"networking_config":{"allowed_hosts":["B.com.","a.com"]}}`, nil},
		{`{"repositories":[{"url":"https://x.example/b","mount_path":"/home/sprite/b"},{"url":"https://x.example/a","mount_path":"/home/sprite/a"}]}`, nil},
		{`{"env_vars":{"A":"1"}}`, nil},
		{`{"env_vars":{"A":"2"}}`, []string{"env_vars"}},
		{`{"setup_script":"x","setup_timeout_seconds":5,"packages":{"npm":["a"]}}`, []string{"packages", "setup_script", "setup_timeout_seconds"}},
		{`{"setup_script":"x\r\n"}`, []string{"setup_script"}},
		{`{"networking_type":"limited","networking_config":{},"repositories":[]}`, []string{"repositories", "networking_type", "networking_config"}},
	} {
		told = nil
		if _, err := s.Update(ctx, a.Actor, e.ID, patch(c.body)); err != nil {
			t.Fatal(c.body, err)
		}
		if c.want == nil && told != nil || c.want != nil && (len(told) != 1 || !slices.Equal(told[0], c.want)) {
			t.Errorf("%s: told %v, want %v", c.body, told, c.want)
		}
	}
	if announced != 4 {
		t.Errorf("announced %d times, want 4", announced)
	}
	refuse = errors.New("the hook failed")
	if _, err := s.Update(ctx, a.Actor, e.ID, patch(`{"setup_script":"y"}`)); !errors.Is(err, refuse) || announced != 4 {
		t.Errorf("a failed hook: %v, announced %d", err, announced)
	}
	if got, err := s.Get(ctx, a.Actor, e.ID); err != nil || got.SetupScript != "x\n" {
		t.Errorf("a failed hook left %q, %v", got.SetupScript, err)
	}
	told = nil
	_, err = s.Update(ctx, b.Actor, e.ID, patch(`{"setup_script":"evil"}`))
	want(t, err, refusal.NotFound)
	if told != nil {
		t.Errorf("another account's update told %v", told)
	}
}

// Forms edit maps in place; that must count as a change.
func TestAnEditInPlaceIsAChange(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	s := service(d)
	in := named("node")
	in.EnvVars = map[string]string{"A": "1"}
	e, err := s.Create(ctx, a.Actor, in)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(ctx, a.Actor, e.ID, func(in *environment.Input) error { in.EnvVars["A"] = "2"; return nil }); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(ctx, a.Actor, e.ID); err != nil || got.EnvVars["A"] != "2" {
		t.Errorf("kept %v, %v", got.EnvVars, err)
	}
}

func TestDigestsAreEqualExactlyWhenTheFieldMeansTheSame(t *testing.T) {
	t.Parallel()
	base := environment.Environment{Input: named("a")}
	if err := base.Validate(); err != nil {
		t.Fatal(err)
	}
	digests := environment.Digests(base)
	if got := slices.Sorted(maps.Keys(digests)); !slices.Equal(got, slices.Sorted(slices.Values(environment.BuiltFields))) {
		t.Fatalf("digests of %v", got)
	}
	if got := environment.ChangedFields(environment.Digests(environment.Environment{Input: environment.Input{SetupTimeoutSeconds: 120, NetworkingType: "unrestricted"}}), digests); len(got) != 0 {
		t.Errorf("nil and empty differ: %v", got)
	}
	for field, edit := range map[string]func(*environment.Input){
		"repositories": func(in *environment.Input) {
			in.Repositories = []environment.Repository{{URL: "https://a.example/b", MountPath: "/a"}}
		},
		"packages":              func(in *environment.Input) { in.Packages.Pip = []string{"a"} },
		"setup_script":          func(in *environment.Input) { in.SetupScript = "\n" },
		"setup_timeout_seconds": func(in *environment.Input) { in.SetupTimeoutSeconds = 121 },
		"env_vars":              func(in *environment.Input) { in.EnvVars = map[string]string{"A": ""} },
		"networking_type":       func(in *environment.Input) { in.NetworkingType = "limited" },
		"networking_config":     func(in *environment.Input) { in.NetworkingConfig.AllowedHosts = []string{"a.com:443"} },
	} {
		changed := base
		edit(&changed.Input)
		if got := environment.ChangedFields(digests, environment.Digests(changed)); !slices.Equal(got, []string{field}) {
			t.Errorf("an edit of %s changes %v", field, got)
		}
	}
	// A package moved from one manager to another is a change; one value cannot be read as two.
	one, two := base, base
	one.Packages.Npm, two.Packages.Pip = []string{"a"}, []string{"a"}
	if environment.Digests(one)["packages"] == environment.Digests(two)["packages"] {
		t.Error("npm a and pip a have one digest")
	}
}

func TestSecretsAreUpsertedListedWithoutValuesAndOpenedForTheirAccountOnly(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	s := service(d)
	e, err := s.Create(ctx, a.Actor, named("node"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, value string) (uuid.UUID, error) {
		made, err := s.PutSecret(ctx, a.Actor, e.ID, environment.SecretInput{Key: key, Value: secret.New(value)})
		return made.ID, err
	}
	first, err := put("TOKEN", "one")
	if err != nil {
		t.Fatal(err)
	}
	again, err := put("TOKEN", "two")
	if err != nil || again != first {
		t.Fatalf("the second put made %s beside %s, %v", again, first, err)
	}
	if _, err := put("OTHER", "multi\nline ünicode"); err != nil {
		t.Fatal(err)
	}
	values, err := s.Secrets(ctx, a.TenantID, e.ID)
	if err != nil || values["TOKEN"].Reveal() != "two" || values["OTHER"].Reveal() != "multi\nline ünicode" || len(values) != 2 {
		t.Fatalf("opened %v, %v", slices.Sorted(maps.Keys(values)), err)
	}
	list, err := s.ListSecrets(ctx, a.Actor, e.ID)
	out, _ := json.Marshal(list)
	if err != nil || len(list) != 2 || list[0].Key != "OTHER" || strings.Contains(string(out), "two") || strings.Contains(string(out), "vault_id") {
		t.Fatalf("listed %s, %v", out, err)
	}
	for name, in := range map[string]environment.SecretInput{
		"a bad name": {Key: "a-b", Value: secret.New("x")}, "a reserved name": {Key: "MANAGOAT_TOKEN", Value: secret.New("x")},
		"no value": {Key: "A"}, "a value with NUL": {Key: "A", Value: secret.New("a\x00b")}, "a huge value": {Key: "A", Value: secret.New(strings.Repeat("x", 65<<10))},
	} {
		_, err := s.PutSecret(ctx, a.Actor, e.ID, in)
		if want(t, err, refusal.ValidationFailed); strings.Contains(fmt.Sprint(refusal.FieldErrors(err)), "a\x00b") {
			t.Errorf("%s: the refusal holds the value", name)
		}
	}
	// Another account.
	_, err = s.PutSecret(ctx, b.Actor, e.ID, environment.SecretInput{Key: "TOKEN", Value: secret.New("evil")})
	want(t, err, refusal.NotFound)
	_, err = s.ListSecrets(ctx, b.Actor, e.ID)
	want(t, err, refusal.NotFound)
	want(t, s.DeleteSecret(ctx, b.Actor, e.ID, "TOKEN"), refusal.NotFound)
	if values, err := s.Secrets(ctx, b.TenantID, e.ID); err != nil || len(values) != 0 {
		t.Errorf("another account opened %v, %v", values, err)
	}
	// What is stored is sealed.
	var stored []byte
	if err := d.Owner(t).QueryRow(ctx, "select sealed from secrets where id = $1", first).Scan(&stored); err != nil || strings.Contains(string(stored), "two") {
		t.Errorf("stored as %q, %v", stored, err)
	}
	// By id or by key.
	if err := s.DeleteSecret(ctx, a.Actor, e.ID, first.String()); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteSecret(ctx, a.Actor, e.ID, "OTHER"); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"OTHER", first.String(), "", "\x00", "never"} {
		want(t, s.DeleteSecret(ctx, a.Actor, e.ID, gone), refusal.NotFound)
	}
}

func TestTwoPutsOfOneKeyMeetInOneSecret(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	s := service(d)
	e, err := s.Create(ctx, a.Actor, named("node"))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			if _, err := s.PutSecret(ctx, a.Actor, e.ID, environment.SecretInput{Key: "TOKEN", Value: secret.New(fmt.Sprint("value ", i))}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if list, err := s.ListSecrets(ctx, a.Actor, e.ID); err != nil || len(list) != 1 {
		t.Errorf("%d secrets, %v", len(list), err)
	}
}

func workspace(t *testing.T, d *identitytest.Instance, tenantID, environmentID uuid.UUID, name, status string, implicit bool) uuid.UUID {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	if _, err := d.Owner(t).Exec(ctx, "insert into workspaces (tenant_id, id, name, environment_id, provider, status, implicit) values ($1, $2, $3, $4, 'local', $5, $6)",
		tenantID, id, name, environmentID, status, implicit); err != nil {
		t.Fatal(err)
	}
	return id
}

// What a secret was is opened for masks as long as there is a machine that may have been given it, and then forgotten.
func TestWhatASecretWasIsMaskedWhileAMachineMayHoldIt(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	s := service(d)
	e, err := s.Create(ctx, a.Actor, named("node"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, value string) {
		t.Helper()
		if _, err := s.PutSecret(ctx, a.Actor, e.ID, environment.SecretInput{Key: key, Value: secret.New(value)}); err != nil {
			t.Fatal(err)
		}
	}
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := d.Owner(t).Exec(ctx, sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	masks := func(want ...string) {
		t.Helper()
		values, err := s.Masks(ctx, a.TenantID, e.ID)
		var got []string
		for _, v := range values {
			got = append(got, v.Reveal())
		}
		slices.Sort(got)
		slices.Sort(want)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("masks %q, want %q, %v", got, want, err)
		}
	}
	machine := func(workspace uuid.UUID) {
		t.Helper()
		id := uuid.Must(uuid.NewV7())
		exec("insert into machines (tenant_id, id, workspace_id, provider, status) values ($1, $2, $3, 'local', 'ready')", a.TenantID, id, workspace)
		exec("update workspaces set machine_id = $1 where id = $2", id, workspace)
	}
	put("TOKEN", "one")
	put("TOKEN", "two")
	masks("two") // nothing was made from it

	ws := workspace(t, d, a.TenantID, e.ID, "first", "ready", false)
	machine(ws)
	put("TOKEN", "three")
	put("TOKEN", "three")
	put("OTHER", "a")
	if err := s.DeleteSecret(ctx, a.Actor, e.ID, "OTHER"); err != nil {
		t.Fatal(err)
	}
	put("OTHER", "b")
	masks("two", "three", "a", "b")
	if values, err := s.Secrets(ctx, a.TenantID, e.ID); err != nil || len(values) != 2 || values["TOKEN"].Reveal() != "three" || values["OTHER"].Reveal() != "b" {
		t.Errorf("what runs gets %d values, %v", len(values), err)
	}
	if values, err := s.Masks(ctx, b.TenantID, e.ID); err != nil || len(values) != 0 {
		t.Errorf("another account opens %d, %v", len(values), err)
	}

	// A machine that was made since is built with what the secrets are; another one's is not forgotten for it.
	own := workspace(t, d, a.TenantID, e.ID, "second", "ready", true)
	machine(own)
	exec("update machines set created_at = created_at - interval '2 hours' where tenant_id = $1", a.TenantID)
	exec("update retired_secrets set retired_at = retired_at - interval '1 hour' where tenant_id = $1", a.TenantID)
	machine(ws)
	put("TOKEN", "four")
	masks("two", "three", "four", "a", "b")
	exec("update workspaces set status = 'deleted' where id = $1", own)
	put("TOKEN", "five")
	masks("three", "four", "five", "b")

	// The oldest of very many are forgotten.
	exec(`insert into retired_secrets (tenant_id, secret_id, environment_id, sealed, key_version, retired_at)
		select tenant_id, secret_id, environment_id, sealed, key_version, retired_at + n * interval '1 second' from retired_secrets, generate_series(1, 700) n where tenant_id = $1`, a.TenantID)
	put("TOKEN", "six")
	if values, err := s.Masks(ctx, a.TenantID, e.ID); err != nil || len(values) != 1002 {
		t.Errorf("%d masks, %v", len(values), err)
	}
	exec("update workspaces set status = 'deleted' where id = $1", ws)
	put("TOKEN", "seven")
	masks("seven", "b")
}

func TestAnEnvironmentInUseIsNotDeletedAndTheRefusalNamesItsUsers(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	s := service(d)
	e, err := s.Create(ctx, a.Actor, named("node"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutSecret(ctx, a.Actor, e.ID, environment.SecretInput{Key: "TOKEN", Value: secret.New("x")}); err != nil {
		t.Fatal(err)
	}
	want(t, s.Delete(ctx, b.Actor, e.ID), refusal.NotFound)

	id := workspace(t, d, a.TenantID, e.ID, "storefront", "failed", false)
	r := want(t, s.Delete(ctx, a.Actor, e.ID), refusal.SourceInUse)
	if names := r.Fields["workspaces"]; fmt.Sprint(names) != "[storefront]" || !strings.Contains(r.Message, "storefront") {
		t.Errorf("names %v: %s", names, r.Message)
	}
	own := workspace(t, d, a.TenantID, e.ID, "conversation 7", "ready", true)
	if _, err := d.Owner(t).Exec(ctx, "update workspaces set status = 'deleted' where id = $1", id); err != nil {
		t.Fatal(err)
	}
	if r := want(t, s.Delete(ctx, a.Actor, e.ID), refusal.SourceInUse); !strings.Contains(r.Message, "conversation") {
		t.Errorf("says %s", r.Message)
	}
	if _, err := d.Owner(t).Exec(ctx, "update workspaces set status = 'deleted' where id = $1", own); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Owner(t).Exec(ctx, "insert into agents (tenant_id, id, name, environment_id) values ($1, $2, 'reviewer', $3)", a.TenantID, uuid.New(), e.ID); err != nil {
		t.Fatal(err)
	}
	if r := want(t, s.Delete(ctx, a.Actor, e.ID), refusal.InUse); fmt.Sprint(r.Fields["used_by"]) != "[reviewer]" {
		t.Errorf("names %v", r.Fields)
	}
	if values, err := s.Secrets(ctx, a.TenantID, e.ID); err != nil || len(values) != 1 {
		t.Fatalf("a refused delete took the secrets: %v", err)
	}
	if _, err := d.Owner(t).Exec(ctx, "delete from agents"); err != nil {
		t.Fatal(err)
	}
	// Workspaces that are deleted keep the id, and nothing else stays.
	if err := s.Delete(ctx, a.Actor, e.ID); err != nil {
		t.Fatal(err)
	}
	_, err = s.Get(ctx, a.Actor, e.ID)
	want(t, err, refusal.NotFound)
	want(t, s.Delete(ctx, a.Actor, e.ID), refusal.NotFound)
	_, err = s.PutSecret(ctx, a.Actor, e.ID, environment.SecretInput{Key: "TOKEN", Value: secret.New("x")})
	want(t, err, refusal.NotFound)
	if values, err := s.Secrets(ctx, a.TenantID, e.ID); err != nil || len(values) != 0 {
		t.Errorf("secrets of a deleted environment: %v, %v", values, err)
	}
}

// What refers to an environment and what deletes it meet: one of the two is refused.
func TestAReferenceAndADeleteNeverBothPass(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	s := service(d)
	for i := range 8 {
		e, err := s.Create(ctx, a.Actor, named(fmt.Sprint("env ", i)))
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var deleted, referred error
		wg.Go(func() { deleted = s.Delete(ctx, a.Actor, e.ID) })
		wg.Go(func() {
			referred = d.InTenant(ctx, a.TenantID, func(tx db.Tx) error {
				if err := s.Hold(ctx, tx, e.ID); err != nil {
					return err
				}
				return tx.Exec(ctx, "insert into workspaces (tenant_id, id, name, environment_id, provider, status) values ($1, $2, $3, $4, 'local', 'ready')",
					a.TenantID, uuid.New(), fmt.Sprint("w ", i), e.ID)
			})
		})
		wg.Wait()
		switch {
		case deleted == nil:
			want(t, referred, refusal.EnvironmentNotFound)
		case referred == nil:
			want(t, deleted, refusal.SourceInUse)
		default:
			t.Fatalf("both failed: %v, %v", deleted, referred)
		}
	}
}
