-- Values of secrets that were replaced or deleted while a workspace stood on them. Its machine's disk and processes hold
-- them on, and what is shown of those masks them. Sealed as they were: for the secret's own id.
create table retired_secrets (
    tenant_id      uuid not null references tenants on delete cascade,
    secret_id      uuid not null,
    retired_at     timestamptz not null default clock_timestamp(),
    environment_id uuid,
    vault_id       uuid,
    sealed         bytea not null,
    key_version    int not null,
    primary key (tenant_id, secret_id, retired_at),
    foreign key (tenant_id, environment_id) references environments on delete cascade,
    foreign key (tenant_id, vault_id) references vaults on delete cascade,
    check (num_nonnulls(environment_id, vault_id) = 1)
);
create index retired_secrets_environment on retired_secrets (tenant_id, environment_id);
create index retired_secrets_vault on retired_secrets (tenant_id, vault_id);
call protect('retired_secrets');
