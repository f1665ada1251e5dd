-- What people keep: environments, vaults, secrets, agents, inference credentials.

create table environments (
    tenant_id             uuid not null references tenants on delete cascade,
    id                    uuid not null,
    name                  text not null check (length(name) between 1 and 200),
    packages              jsonb not null default '{}',
    env_vars              jsonb not null default '{}',
    setup_script          text not null default '',
    setup_timeout_seconds int not null default 120 check (setup_timeout_seconds between 1 and 900),
    networking_type       text not null default 'unrestricted' check (networking_type in ('unrestricted', 'limited')),
    networking_config     jsonb not null default '{}',
    repositories          jsonb not null default '[]',
    metadata              jsonb not null default '{}',
    created_at            timestamptz not null default now(),
    updated_at            timestamptz not null default now(),
    deleted_at            timestamptz,           -- its name is free again; workspaces that were made from it keep the id
    primary key (tenant_id, id)
);
create unique index environments_name on environments (tenant_id, name) where deleted_at is null;
call protect('environments');

create table vaults (
    tenant_id   uuid not null references tenants on delete cascade,
    id          uuid not null,
    name        text not null check (length(name) between 1 and 200),
    description text not null default '',
    metadata    jsonb not null default '{}',
    created_at  timestamptz not null default now(),
    updated_at  timestamptz not null default now(),
    deleted_at  timestamptz,
    primary key (tenant_id, id)
);
create unique index vaults_name on vaults (tenant_id, name) where deleted_at is null;
call protect('vaults');

-- A secret of an environment or of a vault; sealed by the account's data key with (account, row id) as associated data.
create table secrets (
    tenant_id      uuid not null references tenants on delete cascade,
    id             uuid not null,
    environment_id uuid,
    vault_id       uuid,
    key            text not null check (key ~ '^[A-Za-z_][A-Za-z0-9_]*$' and length(key) <= 200),
    sealed         bytea not null,
    key_version    int not null default 1,
    expires_at     timestamptz,           -- advisory
    created_at     timestamptz not null default now(),
    updated_at     timestamptz not null default now(),
    primary key (tenant_id, id),
    unique (tenant_id, environment_id, key),
    unique (tenant_id, vault_id, key),
    foreign key (tenant_id, environment_id) references environments on delete cascade,
    foreign key (tenant_id, vault_id) references vaults on delete cascade,
    check (num_nonnulls(environment_id, vault_id) = 1)
);
call protect('secrets');

create table agents (
    tenant_id      uuid not null references tenants on delete cascade,
    id             uuid not null,
    name           text not null check (length(name) between 1 and 200),
    version        int not null default 1,     -- the newest version
    environment_id uuid,                       -- as in the newest version, so that deletes can be refused
    created_at     timestamptz not null default now(),
    updated_at     timestamptz not null default now(),
    primary key (tenant_id, id),
    unique (tenant_id, name),
    foreign key (tenant_id, environment_id) references environments
);
call protect('agents');

-- Every change of an agent is a new version; a version never changes. No foreign key to agents: a conversation's
-- version outlives a deleted agent.
create table agent_versions (
    tenant_id  uuid not null references tenants on delete cascade,
    agent_id   uuid not null,
    version    int not null check (version >= 1),
    config     jsonb not null,                 -- the whole snapshot: package agent's Config
    created_by text not null default '',
    created_at timestamptz not null default now(),
    primary key (tenant_id, agent_id, version)
);
call protect('agent_versions', 'select, insert');

create table inference_credentials (
    tenant_id   uuid not null references tenants on delete cascade,
    id          uuid not null,
    name        text not null check (length(name) between 1 and 200),
    provider    text not null check (provider in ('anthropic', 'openai', 'google', 'openai_compatible')),
    kind        text not null default 'api_key' check (kind in ('api_key', 'oauth_token')),
    base_url    text not null default '',      -- '' is the provider's own
    sealed      bytea not null,
    key_version int not null default 1,
    revision    int not null default 1,        -- grows with every change of what a conversation is bound to
    is_default  boolean not null default false,
    created_at  timestamptz not null default now(),
    updated_at  timestamptz not null default now(),
    primary key (tenant_id, id),
    unique (tenant_id, name)
);
create unique index inference_credentials_default on inference_credentials (tenant_id, provider) where is_default;
call protect('inference_credentials');
