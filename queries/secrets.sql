-- Secrets of environments and vaults. Exactly one of the two parents is set.

-- name: Secrets :many
select id, environment_id, vault_id, key, sealed, key_version, expires_at, created_at, updated_at from secrets
where tenant_id = app_tenant()
  and environment_id is not distinct from sqlc.narg('environment_id') and vault_id is not distinct from sqlc.narg('vault_id')
order by key;

-- name: SecretID :one
select id from secrets
where tenant_id = app_tenant() and key = @key
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
delete from secrets
where tenant_id = app_tenant() and (id::text = @id_or_key::text or key = @id_or_key)
  and environment_id is not distinct from sqlc.narg('environment_id') and vault_id is not distinct from sqlc.narg('vault_id')
returning id, key;

-- name: DeleteSecretsOf :exec
delete from secrets
where tenant_id = app_tenant()
  and environment_id is not distinct from sqlc.narg('environment_id') and vault_id is not distinct from sqlc.narg('vault_id');
