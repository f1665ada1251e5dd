-- Accounts, people and the ground rules of isolation.
--
-- Every business table has tenant_id, row-level security enabled and forced, and one policy for the app role.
-- protect() is the one way to put a table under it, so that no table can forget a part. The roles
-- (managoat_app, managoat_platform, managoat_definer) are made by package db before migrations run.

create function app_tenant() returns uuid
    language sql stable
    as $$ select nullif(current_setting('app.tenant_id', true), '')::uuid $$;

grant usage on schema public to managoat_app, managoat_platform, managoat_definer;
grant execute on function app_tenant() to managoat_app, managoat_platform, managoat_definer;

-- protect puts a table under tenant isolation. app_privileges is what the app role may do with its own rows.
create procedure protect(tab regclass, app_privileges text default 'select, insert, update, delete')
    language plpgsql
    as $$
begin
    execute format('alter table %s enable row level security', tab);
    execute format('alter table %s force row level security', tab);
    execute format('create policy tenant on %s for all to managoat_app
        using (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)
        with check (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)', tab);
    execute format('create policy platform on %s for all to managoat_platform using (true) with check (true)', tab);
    execute format('grant %s on %s to managoat_app', app_privileges, tab);
    execute format('grant select, insert, update, delete on %s to managoat_platform', tab);
end
$$;
revoke execute on procedure protect(regclass, text) from public;

-- definer_reads lets the NOLOGIN role that owns the definer functions read a table across accounts.
create procedure definer_reads(tab regclass)
    language plpgsql
    as $$
begin
    execute format('create policy definer on %s for select to managoat_definer using (true)', tab);
    execute format('grant select on %s to managoat_definer', tab);
end
$$;
revoke execute on procedure definer_reads(regclass) from public;

-- own_by_definer hands a SECURITY DEFINER function to that role and lets only the app call it.
create procedure own_by_definer(fn regprocedure)
    language plpgsql
    as $$
begin
    execute format('revoke execute on function %s from public', fn);
    execute format('grant execute on function %s to managoat_app, managoat_platform', fn);
    execute format('alter function %s owner to managoat_definer', fn);
end
$$;
revoke execute on procedure own_by_definer(regprocedure) from public;

-- An account. The code says tenant; people read "account". tenant_id is its own id, so that one rule fits all tables.
create table tenants (
    tenant_id    uuid primary key,
    name         text not null check (length(name) between 1 and 200),
    data_key     bytea not null,          -- the account's data key, sealed by the master key
    key_version  int not null default 1,  -- version of the master key that sealed it
    suspended_at timestamptz,
    created_at   timestamptz not null default now()
);
call protect('tenants', 'select, update');
call definer_reads('tenants');

-- Numbers that count up within an account: events of the account's stream.
create table tenant_heads (
    tenant_id uuid primary key references tenants on delete cascade,
    event_seq bigint not null default 0
);
call protect('tenant_heads');

-- A person who can sign in. Global: no tenant data. Only definer functions and the platform read it.
create table identities (
    id            uuid primary key,
    email         text not null unique check (email = lower(email) and length(email) between 3 and 320),
    password_hash text not null,          -- argon2id, encoded with its parameters
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now()
);
grant select, insert, update, delete on identities to managoat_platform;
grant select on identities to managoat_definer;

create table memberships (
    tenant_id   uuid not null references tenants on delete cascade,
    identity_id uuid not null references identities on delete cascade,
    email       text not null,            -- copied, so that an account can list its people
    role        text not null check (role in ('owner', 'member')),
    created_at  timestamptz not null default now(),
    primary key (tenant_id, identity_id)
);
create index memberships_identity on memberships (identity_id);
call protect('memberships', 'select'); -- written by the platform only: nobody makes himself a member
call definer_reads('memberships');

create table sessions (
    tenant_id    uuid not null references tenants on delete cascade,
    id           uuid not null,
    identity_id  uuid not null,
    token_hash   bytea not null,          -- SHA-256 of a random 256-bit token
    user_agent   text not null default '',
    address      text not null default '',
    created_at   timestamptz not null default now(),
    last_used_at timestamptz not null default now(),
    expires_at   timestamptz not null,
    primary key (tenant_id, id),
    foreign key (tenant_id, identity_id) references memberships on delete cascade
);
create index sessions_token on sessions (token_hash);
call protect('sessions');
call definer_reads('sessions');

create table api_keys (
    tenant_id       uuid not null references tenants on delete cascade,
    id              uuid not null,
    name            text not null check (length(name) between 1 and 200),
    prefix          text not null,        -- the visible start of the key
    key_hash        bytea not null,       -- SHA-256
    scope           text not null check (scope in ('full', 'sandbox')),
    identity_id     uuid,                 -- who made it
    conversation_id uuid,                 -- a sandbox key belongs to one conversation
    expires_at      timestamptz,
    revoked_at      timestamptz,
    last_used_at    timestamptz,
    created_at      timestamptz not null default now(),
    primary key (tenant_id, id),
    check (scope <> 'sandbox' or (conversation_id is not null and expires_at is not null))
);
create index api_keys_hash on api_keys (key_hash);
call protect('api_keys');
call definer_reads('api_keys');

-- One-time links that make the first account. Global.
create table setup_links (
    token_hash bytea primary key,
    expires_at timestamptz not null,
    used_at    timestamptz,
    created_at timestamptz not null default now()
);
grant select, insert, update, delete on setup_links to managoat_platform;
grant select on setup_links to managoat_definer;

-- Sign-ins that were tried: what throttling counts, for every server of the instance alike. Global: a key is the SHA-256 of
-- an address, of an e-mail, or of both, and says nothing else.
create table sign_in_attempts (
    key      bytea primary key,
    attempts int not null,
    until    timestamptz not null          -- end of the window that attempts counts
);
create index sign_in_attempts_until on sign_in_attempts (until);
grant select, insert, update, delete on sign_in_attempts to managoat_app;

-- Every look across accounts, written before it happens. Never read by the app.
create table platform_access (
    id       bigint generated always as identity primary key,
    at       timestamptz not null default now(),
    operator text not null check (operator <> ''),
    reason   text not null check (reason <> '')
);
grant select, insert on platform_access to managoat_platform;

create table audit_events (
    tenant_id     uuid not null references tenants on delete cascade,
    id            uuid not null,          -- UUIDv7: sorts by time
    at            timestamptz not null default now(),
    actor_kind    text not null check (actor_kind in ('user', 'key', 'sandbox', 'operator', 'system')),
    actor_id      text not null,          -- identity, key, operator name or job name
    action        text not null,          -- noun.verb, of the closed vocabulary in internal/audit
    resource_type text not null,
    resource_id   text not null,
    changed       text[] not null default '{}',  -- names of fields, never values
    request_id    text not null default '',
    address       text not null default '',
    primary key (tenant_id, id)
);
create index audit_events_resource on audit_events (tenant_id, resource_type, resource_id, id);
call protect('audit_events', 'select, insert');

-- The account's quota row: locked last by whatever uses a quota. null means the instance's default.
create table quotas (
    tenant_id          uuid primary key references tenants on delete cascade,
    running_machines   int check (running_machines >= 0),
    prompts_per_minute int check (prompts_per_minute >= 0),
    prompt_minute      timestamptz not null default 'epoch',  -- the minute that prompt_count counts
    prompt_count       int not null default 0
);
call protect('quotas', 'select, update');

create table idempotency_keys (
    tenant_id  uuid not null references tenants on delete cascade,
    route      text not null,
    key        text not null,
    body_hash  bytea not null,
    status     int,                       -- null while the first request runs
    response   bytea,
    created_at timestamptz not null default now(),
    primary key (tenant_id, route, key)
);
create index idempotency_keys_age on idempotency_keys (tenant_id, created_at);
call protect('idempotency_keys');

-- A server process. Global: no tenant data.
create table hosts (
    id         uuid primary key,
    url        text not null,
    started_at timestamptz not null default now(),
    seen_at    timestamptz not null default now()
);
grant select, insert, update, delete on hosts to managoat_app;
grant select on hosts to managoat_platform, managoat_definer;

-- What must be found before the account is known: one row for one hash, nothing else.

create function lookup_session(hash bytea)
    returns table (tenant_id uuid, session_id uuid, identity_id uuid, email text, role text, account text, expires_at timestamptz, last_used_at timestamptz)
    language sql stable security definer set search_path = public, pg_temp
    as $$
    select s.tenant_id, s.id, s.identity_id, m.email, m.role, t.name, s.expires_at, s.last_used_at
    from sessions s
    join memberships m on m.tenant_id = s.tenant_id and m.identity_id = s.identity_id
    join tenants t on t.tenant_id = s.tenant_id
    where s.token_hash = hash and s.expires_at > now() and t.suspended_at is null
    limit 1
    $$;
call own_by_definer('lookup_session(bytea)');

create function lookup_api_key(hash bytea)
    returns table (tenant_id uuid, key_id uuid, name text, scope text, conversation_id uuid, identity_id uuid, account text,
                   expires_at timestamptz, revoked_at timestamptz, last_used_at timestamptz, suspended_at timestamptz)
    language sql stable security definer set search_path = public, pg_temp
    as $$
    select k.tenant_id, k.id, k.name, k.scope, k.conversation_id, k.identity_id, t.name,
           k.expires_at, k.revoked_at, k.last_used_at, t.suspended_at
    from api_keys k
    join tenants t on t.tenant_id = k.tenant_id
    where k.key_hash = hash
    limit 1
    $$;
call own_by_definer('lookup_api_key(bytea)');

-- A person's password hash and accounts, for sign-in. One row an account, the oldest first.
create function lookup_identity(address text)
    returns table (identity_id uuid, password_hash text, tenant_id uuid, role text, account text)
    language sql stable security definer set search_path = public, pg_temp
    as $$
    select i.id, i.password_hash, m.tenant_id, m.role, t.name
    from identities i
    join memberships m on m.identity_id = i.id
    join tenants t on t.tenant_id = m.tenant_id
    where i.email = lower(address) and t.suspended_at is null
    order by m.created_at
    $$;
call own_by_definer('lookup_identity(text)');

create function lookup_setup_link(hash bytea)
    returns boolean
    language sql stable security definer set search_path = public, pg_temp
    as $$ select exists (select 1 from setup_links l where l.token_hash = hash and l.used_at is null and l.expires_at > now()) $$;
call own_by_definer('lookup_setup_link(bytea)');

-- Whether anybody has an account here: decides whether the first start prints a set-up link.
create function has_accounts() returns boolean
    language sql stable security definer set search_path = public, pg_temp
    as $$ select exists (select 1 from tenants) $$;
call own_by_definer('has_accounts()');
