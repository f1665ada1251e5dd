package db_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"managoat/db/dbtest"
)

// What the catalog must say. Each exception has its reason; a new table, function or privilege that is not here fails.
var (
	// policyForm is the one form of a tenant's rows. A cast of the column, or a function, would keep the index out.
	policyForm = "(tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)"

	// globalTables hold no tenant's data, with what the app may do with them.
	globalTables = map[string]string{
		"hosts":             "DELETE,INSERT,SELECT,UPDATE", // servers of the instance
		"sign_in_attempts":  "DELETE,INSERT,SELECT,UPDATE", // hashes that throttling counts
		"identities":        "",                            // people of every account: the platform's, and one definer function
		"setup_links":       "",
		"platform_access":   "",
		"schema_migrations": "",
	}

	// narrowed are the tables of which the app may not do everything with its rows. Append-only ones tell what happened.
	narrowed = map[string]string{
		"tenants":         "SELECT,UPDATE", // accounts are made and deleted by the platform
		"memberships":     "SELECT",        // nobody makes himself a member
		"quotas":          "SELECT,UPDATE",
		"audit_events":    "INSERT,SELECT",
		"agent_versions":  "INSERT,SELECT",
		"events":          "INSERT,SELECT",
		"egress_requests": "INSERT,SELECT",
		"usage_entries":   "INSERT,SELECT",
		"model_requests":  "INSERT,SELECT,UPDATE", // the turn is set when its usage entry is written
		"tenant_events":   "DELETE,INSERT,SELECT", // rows of the setup before go with the next
	}

	// platformNarrowed likewise, of the platform's login.
	platformNarrowed = map[string]string{
		"platform_access":   "INSERT,SELECT",
		"hosts":             "SELECT,UPDATE", // operators take them out of service
		"sign_in_attempts":  "",
		"schema_migrations": "",
	}

	// otherIndexes do not lead with tenant_id.
	otherIndexes = map[string]string{
		"memberships_identity": "a person's accounts are found before one is known",
		"sessions_token":       "a session is found before its account is known",
		"api_keys_hash":        "a key is found before its account is known",
		"machines_status":      "machines of the whole instance are counted",
		"machines_host":        "machines of a host are found, and counted, across accounts",
		"operations_open":      "due work is found across accounts",
	}

	// globalReferences may be named by a foreign key without the account.
	globalReferences = map[string]string{
		"identities": "people belong to several accounts",
		"hosts":      "servers belong to none",
	}

	// definerFunctions see across accounts and say one row for one hash, ids, or a count.
	definerFunctions = []string{
		"due_closed(integer)", "due_deletes(integer)", "due_disposals(uuid,double precision,double precision,integer)", "due_forgets(uuid,integer)", "due_machine_operations(integer)", "due_machine_operations(uuid,integer)", "due_machines(uuid,integer)",
		"due_operations(integer)", "due_operations(uuid,integer)", "due_parks(uuid,double precision,double precision,integer)", "has_accounts()", "held_operations(uuid)",
		"lookup_api_key(bytea)", "lookup_identity(text)", "lookup_session(bytea)", "lookup_setup_link(bytea)", "machines_on(uuid)", "place_machine(text,uuid)", "running_machines()",
	}

	// definerReads are the tables those functions may read.
	definerReads = []string{
		"api_keys", "conversations", "hosts", "identities", "machines", "memberships", "operations", "sessions", "setup_links", "tenants", "turns", "workspaces",
	}
)

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// ours leaves out what PostgreSQL brings along.
const ours = " n.nspname not in ('pg_catalog', 'information_schema') and n.nspname not like 'pg_toast%' and n.nspname not like 'pg_temp%' "

// catalog looks for what breaks the rules of isolation.
type catalog struct {
	t        testing.TB
	q        querier
	problems []string
}

func (c *catalog) add(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// rows reads text columns.
func (c *catalog) rows(sql string, args ...any) [][]string {
	c.t.Helper()
	r, err := c.q.Query(context.Background(), sql, args...)
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := pgx.CollectRows(r, func(row pgx.CollectableRow) ([]string, error) {
		values := make([]string, len(row.FieldDescriptions()))
		into := make([]any, len(values))
		for i := range values {
			into[i] = &values[i]
		}
		return values, row.Scan(into...)
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// catalogProblems is everything that is wrong with a database.
func catalogProblems(t testing.TB, q querier) []string {
	t.Helper()
	c := &catalog{t: t, q: q}
	tenantTables := c.tables()
	c.policies(tenantTables)
	c.indexes()
	c.references()
	c.privileges(tenantTables)
	c.roles()
	c.functions()
	c.shapes()
	return c.problems
}

func (c *catalog) tables() (tenantTables []string) {
	seen := map[string]bool{}
	for _, r := range c.rows(`
		select n.nspname || '.' || k.relname, k.relname, k.relkind::text, k.relrowsecurity::text, k.relforcerowsecurity::text,
			coalesce(format_type(a.atttypid, a.atttypmod) || case when a.attnotnull then ' not null' else '' end, '')
		from pg_class k join pg_namespace n on n.oid = k.relnamespace
		left join pg_attribute a on a.attrelid = k.oid and a.attname = 'tenant_id' and not a.attisdropped
		where k.relkind in ('r', 'p', 'f') and ` + ours) {
		full, name, kind, enabled, forced, column := r[0], r[1], r[2], r[3], r[4], r[5]
		seen[name] = true
		_, global := globalTables[name]
		switch {
		case full != "public."+name:
			c.add("table %s is not in the schema public", full)
		case kind != "r":
			c.add("table %s is of the kind %q: partitions and foreign tables have policies of their own", name, kind)
		case global && column != "":
			c.add("table %s is listed as global and has a tenant_id", name)
		case global:
		case column == "":
			c.add("table %s has no tenant_id and is not listed as global", name)
		default:
			tenantTables = append(tenantTables, name)
			if column != "uuid not null" {
				c.add("table %s: tenant_id is %s", name, column)
			}
			if enabled != "true" {
				c.add("table %s: row-level security is not enabled", name)
			}
			if forced != "true" {
				c.add("table %s: row-level security is not forced on its owner", name)
			}
		}
	}
	for name := range globalTables {
		if !seen[name] {
			c.add("table %s is listed and does not exist", name)
		}
	}
	return tenantTables
}

func (c *catalog) policies(tenantTables []string) {
	have := map[string][]string{}
	for _, r := range c.rows(`
		select tablename, policyname, permissive, array_to_string(roles, ','), cmd, coalesce(qual, '-'), coalesce(with_check, '-') from pg_policies`) {
		have[r[0]] = append(have[r[0]], strings.Join(r[1:], " | "))
	}
	for _, table := range tenantTables {
		want := []string{
			"platform | PERMISSIVE | managoat_platform | ALL | true | true",
			"tenant | PERMISSIVE | managoat_app | ALL | " + policyForm + " | " + policyForm,
		}
		if slices.Contains(definerReads, table) {
			want = append(want, "definer | PERMISSIVE | managoat_definer | SELECT | true | -")
		}
		for _, p := range want {
			if !slices.Contains(have[table], p) {
				c.add("table %s lacks the policy %s", table, p)
			}
		}
		for _, p := range have[table] {
			if !slices.Contains(want, p) {
				c.add("table %s has the policy %s", table, p)
			}
		}
		delete(have, table)
	}
	for table := range have {
		c.add("table %s has policies and no tenant", table)
	}
}

func (c *catalog) indexes() {
	seen := map[string]bool{}
	for _, r := range c.rows(`
		select t.relname, x.relname, i.indisunique::text, coalesce(a.attname, '(expression)')
		from pg_index i
		join pg_class x on x.oid = i.indexrelid
		join pg_class t on t.oid = i.indrelid
		join pg_namespace n on n.oid = t.relnamespace
		left join pg_attribute a on a.attrelid = t.oid and a.attnum = i.indkey[0]
		where exists (select 1 from pg_attribute o where o.attrelid = t.oid and o.attname = 'tenant_id' and not o.attisdropped) and ` + ours) {
		table, index, unique, first := r[0], r[1], r[2], r[3]
		seen[index] = true
		switch {
		case first == "tenant_id":
		case unique == "true":
			c.add("index %s of %s is unique across accounts: it leads with %s", index, table, first)
		case otherIndexes[index] == "":
			c.add("index %s of %s leads with %s", index, table, first)
		}
	}
	for index := range otherIndexes {
		if !seen[index] {
			c.add("index %s is listed and does not exist", index)
		}
	}
}

func (c *catalog) references() {
	for _, r := range c.rows(`
		select t.relname, o.conname, f.relname, a.attname, coalesce(b.attname, '')
		from pg_constraint o
		join pg_class t on t.oid = o.conrelid
		join pg_class f on f.oid = o.confrelid
		join pg_namespace n on n.oid = t.relnamespace
		join pg_attribute a on a.attrelid = t.oid and a.attnum = o.conkey[1]
		join pg_attribute b on b.attrelid = f.oid and b.attnum = o.confkey[1]
		where o.contype = 'f' and ` + ours) {
		table, name, to, from, at := r[0], r[1], r[2], r[3], r[4]
		if globalReferences[to] != "" {
			continue
		}
		if from != "tenant_id" || at != "tenant_id" {
			c.add("foreign key %s of %s refers to %s by %s: a row could point at another account's", name, table, to, from)
		}
	}
}

func (c *catalog) privileges(tenantTables []string) {
	granted := map[string]map[string]string{} // role, table
	for _, r := range c.rows(`
		select coalesce(g.rolname, 'public'), k.relname, string_agg(a.privilege_type, ',' order by a.privilege_type)
		from pg_class k join pg_namespace n on n.oid = k.relnamespace
		cross join aclexplode(k.relacl) a
		left join pg_roles g on g.oid = a.grantee
		where a.grantee <> k.relowner and ` + ours + ` group by 1, 2`) {
		if granted[r[0]] == nil {
			granted[r[0]] = map[string]string{}
		}
		granted[r[0]][r[1]] = r[2]
	}
	expect := map[string]map[string]string{"managoat_app": maps.Clone(globalTables), "managoat_platform": {}, "managoat_definer": {}}
	for _, table := range slices.Concat(tenantTables, slices.Collect(maps.Keys(globalTables))) {
		if _, global := globalTables[table]; !global {
			expect["managoat_app"][table] = "DELETE,INSERT,SELECT,UPDATE"
			if p, ok := narrowed[table]; ok {
				expect["managoat_app"][table] = p
			}
		}
		expect["managoat_platform"][table] = "DELETE,INSERT,SELECT,UPDATE"
		if p, ok := platformNarrowed[table]; ok {
			expect["managoat_platform"][table] = p
		}
	}
	for _, table := range definerReads {
		expect["managoat_definer"][table] = "SELECT"
	}
	for role, tables := range expect {
		for table, want := range tables {
			if got := granted[role][table]; got != want {
				c.add("%s may %q on %s, not %q", role, got, table, want)
			}
			delete(granted[role], table)
		}
	}
	for role, tables := range granted {
		for table, got := range tables {
			c.add("%s may %q on %s, which no list knows", role, got, table)
		}
	}
	for _, r := range c.rows(`
		select coalesce(g.rolname, 'public'), k.relname, a.attname from pg_attribute a
		join pg_class k on k.oid = a.attrelid join pg_namespace n on n.oid = k.relnamespace
		cross join aclexplode(a.attacl) x left join pg_roles g on g.oid = x.grantee where x.grantee <> k.relowner and ` + ours) {
		c.add("%s has a privilege on the single column %s.%s", r[0], r[1], r[2])
	}
	for _, r := range c.rows(`
		select g.rolname, n.nspname from pg_namespace n cross join pg_roles g
		where g.rolname in ('managoat_app', 'managoat_platform', 'managoat_definer') and has_schema_privilege(g.oid, n.oid, 'create') and ` + ours) {
		c.add("%s may create in the schema %s", r[0], r[1])
	}
}

func (c *catalog) roles() {
	for _, r := range c.rows(`
		select rolname, rolcanlogin::text, concat_ws(', ', case when rolsuper then 'superuser' end, case when rolbypassrls then 'bypassrls' end,
			case when rolcreaterole then 'createrole' end, case when rolcreatedb then 'createdb' end, case when rolreplication then 'replication' end)
		from pg_roles where rolname in ('managoat_app', 'managoat_platform', 'managoat_definer')`) {
		if r[2] != "" {
			c.add("role %s is %s", r[0], r[2])
		}
		if login := r[0] != "managoat_definer"; (r[1] == "true") != login {
			c.add("role %s: login is %s", r[0], r[1])
		}
	}
	for _, r := range c.rows(`
		select m.rolname, g.rolname from pg_auth_members x join pg_roles m on m.oid = x.member join pg_roles g on g.oid = x.roleid
		where g.rolname like 'managoat\_%' or m.rolname like 'managoat\_%'`) {
		c.add("role %s is a member of %s", r[0], r[1])
	}
	for _, r := range c.rows(`
		select g.rolname, k.relname from pg_class k join pg_roles g on g.oid = k.relowner join pg_namespace n on n.oid = k.relnamespace
		where g.rolname in ('managoat_app', 'managoat_platform', 'managoat_definer') and ` + ours) {
		c.add("role %s owns %s", r[0], r[1])
	}
}

func (c *catalog) functions() {
	var found []string
	for _, r := range c.rows(`
		select p.oid::regprocedure::text, o.rolname, p.prosecdef::text, coalesce(array_to_string(p.proconfig, ';'), ''),
			coalesce((select string_agg(coalesce(g.rolname, 'public'), ',' order by g.rolname) from aclexplode(p.proacl) a left join pg_roles g on g.oid = a.grantee), 'public')
		from pg_proc p join pg_namespace n on n.oid = p.pronamespace join pg_roles o on o.oid = p.proowner
		where (p.prosecdef or o.rolname like 'managoat\_%') and ` + ours) {
		name, owner, definer, config, callers := r[0], r[1], r[2], r[3], r[4]
		found = append(found, name)
		switch {
		case !slices.Contains(definerFunctions, name):
			c.add("function %s runs with its owner's rights and is not on the list", name)
		case owner != "managoat_definer":
			c.add("function %s is owned by %s", name, owner)
		case definer != "true":
			c.add("function %s does not run with its owner's rights", name)
		case config != "search_path=public, pg_temp":
			c.add("function %s has the settings %q: the search path must be fixed", name, config)
		case callers != "managoat_app,managoat_definer,managoat_platform":
			c.add("function %s may be called by %s", name, callers)
		}
	}
	for _, name := range definerFunctions {
		if !slices.Contains(found, name) {
			c.add("function %s is listed and does not exist", name)
		}
	}
}

// shapes are things that defeat isolation or its indexes whatever they hold.
func (c *catalog) shapes() {
	for _, r := range c.rows(`
		select k.relname, k.relkind::text, coalesce(array_to_string(k.reloptions, ','), '') from pg_class k join pg_namespace n on n.oid = k.relnamespace
		where k.relkind in ('v', 'm') and ` + ours) {
		if r[1] == "m" {
			c.add("materialized view %s: it holds rows of every account", r[0])
		} else if !strings.Contains(r[2], "security_invoker=true") {
			c.add("view %s reads with its owner's rights: security_invoker is missing", r[0])
		}
	}
	for _, r := range c.rows(`select y.typname from pg_type y join pg_namespace n on n.oid = y.typnamespace where y.typtype = 'e' and ` + ours) {
		c.add("type %s is an enum: its operators are not leakproof, so that a policy keeps its indexes out", r[0])
	}
	for _, r := range c.rows(`select k.relname, w.rulename from pg_rewrite w join pg_class k on k.oid = w.ev_class join pg_namespace n on n.oid = k.relnamespace where k.relkind = 'r' and ` + ours) {
		c.add("table %s has the rule %s", r[0], r[1])
	}
}

// settled looks until nothing is wrong or time is up: other tests of the same server migrate, during which their
// connection is a member of the definer's role.
func settled(t *testing.T, q querier) []string {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		problems := catalogProblems(t, q)
		if len(problems) == 0 {
			return nil
		}
		select {
		case <-deadline:
			return problems
		case <-tick.C:
		}
	}
}

func TestTheCatalogKeepsAccountsApart(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	for _, problem := range settled(t, d.Owner(t)) {
		t.Error(problem)
	}
}

// Every way in which isolation was seen to break is planted and must be found.
func TestTheCatalogTestFindsWhatBreaksIsolation(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	conn := d.Owner(t)
	const table = "create table planted (tenant_id uuid not null references tenants on delete cascade, id uuid not null, primary key (tenant_id, id)); "
	const protected = table + "call protect('planted'); "
	for name, c := range map[string]struct{ plant, want string }{
		"a table without tenant_id":              {"create table planted (id uuid primary key)", "planted has no tenant_id"},
		"a tenant_id that may be null":           {"create table planted (tenant_id uuid, id uuid)", "tenant_id is uuid"},
		"a tenant_id of text":                    {"create table planted (tenant_id text not null)", "tenant_id is text not null"},
		"a table that nobody protected":          {table, "row-level security is not enabled"},
		"a table whose owner sees all":           {protected + "alter table planted no force row level security", "not forced on its owner"},
		"a table that was switched off":          {protected + "alter table planted disable row level security", "not enabled"},
		"a policy that checks no writes":         {protected + "drop policy tenant on planted; create policy tenant on planted for all to managoat_app using " + policyForm + " with check (true)", "lacks the policy tenant"},
		"a policy for reads only":                {protected + "drop policy tenant on planted; create policy tenant on planted for select to managoat_app using " + policyForm, "lacks the policy tenant"},
		"a policy that casts the column":         {protected + "drop policy tenant on planted; create policy tenant on planted for all to managoat_app using (tenant_id::text = current_setting('app.tenant_id', true)) with check (tenant_id::text = current_setting('app.tenant_id', true))", "has the policy tenant"},
		"a policy that allows all when unset":    {protected + "drop policy tenant on planted; create policy tenant on planted for all to managoat_app using (current_setting('app.tenant_id', true) is null or tenant_id = current_setting('app.tenant_id', true)::uuid)", "lacks the policy tenant"},
		"a second policy that allows more":       {protected + "create policy more on planted for select to managoat_app using (true)", "has the policy more"},
		"a policy for everybody":                 {protected + "create policy everybody on planted for select using (true)", "has the policy everybody"},
		"the definer on one more table":          {protected + "call definer_reads('planted')", "has the policy definer"},
		"a policy that was dropped":              {"drop policy tenant on environments", "environments lacks the policy tenant"},
		"a unique name across accounts":          {protected + "alter table planted add name text unique", "unique across accounts"},
		"a primary key across accounts":          {"create table planted (id uuid primary key, tenant_id uuid not null); call protect('planted')", "unique across accounts"},
		"an index that does not lead with it":    {protected + "create index planted_id on planted (id)", "index planted_id of planted leads with id"},
		"an index of an expression":              {protected + "create index planted_x on planted ((id::text))", "leads with (expression)"},
		"a foreign key by id alone":              {"alter table environments add constraint environments_id unique (tenant_id, id); alter table environments add constraint once unique (id); " + protected + "alter table planted add environment_id uuid references environments (id)", "could point at another account's"},
		"the app may truncate":                   {"grant truncate on environments to managoat_app", `managoat_app may "DELETE,INSERT,SELECT,TRUNCATE,UPDATE" on environments`},
		"the app may rewrite the trail":          {"grant update on audit_events to managoat_app", "on audit_events"},
		"the app may delete events":              {"grant delete on events to managoat_app", "on events"},
		"the app may read people's passwords":    {"grant select on identities to managoat_app", "on identities"},
		"the app may read one column of them":    {"grant select (email) on identities to managoat_app", "single column identities.email"},
		"everybody may read a table":             {"grant select on secrets to public", `public may "SELECT" on secrets`},
		"the app may add references":             {"grant references on secrets to managoat_app", "REFERENCES"},
		"the app may use a sequence":             {"create sequence planted; grant usage on sequence planted to managoat_app", "on planted, which no list knows"},
		"the app may create tables":              {"grant create on schema public to managoat_app", "managoat_app may create in the schema public"},
		"the app owns a table":                   {protected + "alter table planted owner to managoat_app", "managoat_app owns planted"},
		"the app bypasses policies":              {"alter role managoat_app bypassrls", "role managoat_app is bypassrls"},
		"the app is a superuser":                 {"alter role managoat_app superuser", "role managoat_app is superuser"},
		"the definer may log in":                 {"alter role managoat_definer login", "managoat_definer: login is true"},
		"the app is a member of the definer":     {"grant managoat_definer to managoat_app", "managoat_app is a member of managoat_definer"},
		"the app is a member of the platform":    {"grant managoat_platform to managoat_app", "managoat_app is a member of managoat_platform"},
		"one more definer function":              {"create function planted() returns bigint language sql security definer set search_path = public, pg_temp as 'select count(*) from tenants'", "planted() runs with its owner's rights"},
		"a definer function of the superuser":    {"alter function has_accounts() owner to current_user", "has_accounts() is owned by"},
		"a definer function with another path":   {"alter function has_accounts() reset search_path", "the search path must be fixed"},
		"a definer function that all may call":   {"grant execute on function lookup_identity(text) to public", "may be called by"},
		"a definer function with another form":   {"create function lookup_identity(text, text) returns bigint language sql security definer as 'select 1'", "lookup_identity(text,text) runs"},
		"a definer function that went":           {"drop function has_accounts()", "has_accounts() is listed and does not exist"},
		"a view with its owner's rights":         {"create view planted as select * from secrets", "security_invoker is missing"},
		"a materialized view":                    {"create materialized view planted as select * from secrets", "materialized view planted"},
		"an enum":                                {"create type planted as enum ('a')", "planted is an enum"},
		"a rule":                                 {"create rule planted as on insert to secrets do also nothing", "secrets has the rule planted"},
		"a partitioned table":                    {"create table planted (tenant_id uuid not null) partition by hash (tenant_id)", "partitions and foreign tables"},
		"a table in another schema":              {"create schema other; create table other.planted (tenant_id uuid not null)", "other.planted is not in the schema public"},
		"a tenant_id on a table that is global":  {"alter table hosts add tenant_id uuid", "hosts is listed as global"},
		"a policy on a table that is global":     {"create policy p on hosts using (true)", "hosts has policies and no tenant"},
		"an index that was dropped or renamed":   {"drop index sessions_token", "sessions_token is listed and does not exist"},
		"a global table that was dropped":        {"drop table sign_in_attempts", "sign_in_attempts is listed and does not exist"},
		"the platform may rewrite what it did":   {"grant update, delete on platform_access to managoat_platform", "managoat_platform may"},
		"the platform lost its policy":           {"drop policy platform on tenants", "tenants lacks the policy platform"},
		"a function that lost its definer right": {"alter function has_accounts() security invoker", "has_accounts() does not run with its owner's rights"},
	} {
		problems := planted(t, conn, name, c.plant)
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, c.want) }) {
			t.Errorf("%s: not found among %q", name, problems)
		}
	}
	// And what is well made is no problem.
	if problems := planted(t, conn, "a table as it should be", protected); len(problems) != 0 && !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, "member of") }) {
		t.Errorf("a table as it should be: %q", problems)
	}
	if problems := settled(t, conn); len(problems) != 0 {
		t.Errorf("what was planted stayed: %q", problems)
	}
}

// planted runs the statements in a transaction that is rolled back, and looks at the catalog inside it. Roles belong to
// the whole server: when another test changes one at the same moment, the statement fails and is tried again.
func planted(t *testing.T, conn *pgx.Conn, name, sql string) (problems []string) {
	t.Helper()
	ctx := context.Background()
	for range 20 {
		tx, err := conn.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(ctx, sql)
		if err == nil {
			problems = catalogProblems(t, tx)
		}
		if e := tx.Rollback(ctx); e != nil {
			t.Fatal(e)
		}
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "XX000" && strings.Contains(pg.Message, "concurrently updated") {
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return problems
	}
	t.Fatalf("%s: the roles were changed all the time", name)
	return nil
}
