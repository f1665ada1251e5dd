-- Secrets of environments and vaults. Exactly one of the two parents is set.

-- name: Secrets :many
select id, environment_id, vault_id, key, sealed, key_version, expires_at, created_at, updated_at from secrets
where tenant_id = app_tenant()
  and environment_id is not distinct from sqlc.narg('environment_id') and vault_id is not distinct from sqlc.narg('vault_id')
order by key;

-- name: SecretMasks :many
-- Every value there is of a parent's secrets, those that were replaced or deleted too.
select id, sealed, key_version from secrets s
where s.tenant_id = app_tenant()
  and s.environment_id is not distinct from sqlc.narg('environment_id') and s.vault_id is not distinct from sqlc.narg('vault_id')
union all
select secret_id, sealed, key_version from retired_secrets r
where r.tenant_id = app_tenant()
  and r.environment_id is not distinct from sqlc.narg('environment_id') and r.vault_id is not distinct from sqlc.narg('vault_id');

-- name: Secret :one
select id, sealed, key_version from secrets
where tenant_id = app_tenant() and (id::text = @id_or_key::text or key = @id_or_key)
  and environment_id is not distinct from sqlc.narg('environment_id') and vault_id is not distinct from sqlc.narg('vault_id');

-- name: CountSecrets :one
select count(*) from secrets
where tenant_id = app_tenant()
  and environment_id is not distinct from sqlc.narg('environment_id') and vault_id is not distinct from sqlc.narg('vault_id');

-- name: PutSecret :one
insert into secrets (tenant_id, id, environment_id, vault_id, key, sealed, key_version, expires_at)
values (app_tenant(), @id, sqlc.narg('environment_id'), sqlc.narg('vault_id'), @key, @sealed, @key_version, sqlc.narg('expires_at'))
on conflict (tenant_id, id) do update set
    sealed = excluded.sealed, key_version = excluded.key_version, expires_at = excluded.expires_at, updated_at = now()
returning id, key, expires_at, created_at, updated_at;

-- name: ExpireSecret :one
update secrets set expires_at = sqlc.narg('expires_at'), updated_at = now()
where tenant_id = app_tenant() and id = @id
returning id, key, expires_at, created_at, updated_at;

-- name: DeleteSecret :one
delete from secrets where tenant_id = app_tenant() and id = @id returning key;

-- name: DeleteSecretsOf :exec
delete from secrets
where tenant_id = app_tenant()
  and environment_id is not distinct from sqlc.narg('environment_id') and vault_id is not distinct from sqlc.narg('vault_id');

-- name: RetireSecret :exec
-- Keeps the value that a secret has now, if there is a workspace whose machine may hold it.
insert into retired_secrets (tenant_id, secret_id, environment_id, vault_id, sealed, key_version)
select s.tenant_id, s.id, s.environment_id, s.vault_id, s.sealed, s.key_version from secrets s
where s.tenant_id = app_tenant() and s.id = @id and exists (
    select from workspaces w
    where w.tenant_id = s.tenant_id and w.status <> 'deleted' and (w.environment_id = s.environment_id or w.vault_id = s.vault_id));

-- name: DropRetiredSecrets :exec
-- Forgets what no machine holds any more: those that there are now were made since, by more than a change of a secret takes.
delete from retired_secrets r
where r.tenant_id = app_tenant() and (r.environment_id = sqlc.narg('environment_id') or r.vault_id = sqlc.narg('vault_id'))
  and not exists (
    select from workspaces w join machines m on m.tenant_id = w.tenant_id and m.id = w.machine_id
    where w.tenant_id = r.tenant_id and w.status <> 'deleted' and (w.environment_id = r.environment_id or w.vault_id = r.vault_id)
      and m.created_at < r.retired_at + interval '1 minute');

-- name: BoundRetiredSecrets :exec
-- Forgets the oldest of a parent, past a number of them or of bytes.
with aged as (
    select secret_id, retired_at, row_number() over newest as place, sum(octet_length(sealed)) over newest as bytes from retired_secrets o
    where o.tenant_id = app_tenant()
      and o.environment_id is not distinct from sqlc.narg('environment_id') and o.vault_id is not distinct from sqlc.narg('vault_id')
    window newest as (order by retired_at desc))
delete from retired_secrets r using aged a
where r.tenant_id = app_tenant() and r.secret_id = a.secret_id and r.retired_at = a.retired_at
  and (a.place > @at_most::int or a.bytes > @at_most_bytes::bigint);
