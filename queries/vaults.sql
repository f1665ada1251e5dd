-- name: InsertVault :one
insert into vaults (tenant_id, id, name, description, metadata) values (app_tenant(), @id, @name, @description, @metadata)
returning created_at, updated_at;

-- name: Vault :one
select sqlc.embed(v), (select count(*) from secrets s where s.tenant_id = v.tenant_id and s.vault_id = v.id)::int as secret_count
from vaults v
where v.tenant_id = app_tenant() and v.id = @id and v.deleted_at is null;

-- name: Vaults :many
select sqlc.embed(v), (select count(*) from secrets s where s.tenant_id = v.tenant_id and s.vault_id = v.id)::int as secret_count
from vaults v
where v.tenant_id = app_tenant() and v.deleted_at is null and (sqlc.narg('after')::text is null or v.name > sqlc.narg('after'))
order by v.name limit @at_most;

-- name: LockVault :one
select id from vaults where tenant_id = app_tenant() and id = @id and deleted_at is null for update;

-- name: HoldVault :one
-- Keeps the vault from being deleted until the transaction that refers to it ends.
select id from vaults where tenant_id = app_tenant() and id = @id and deleted_at is null for key share;

-- name: UpdateVault :one
update vaults set name = @name, description = @description, metadata = @metadata, updated_at = now()
where tenant_id = app_tenant() and id = @id and deleted_at is null
returning updated_at;

-- name: DeleteVault :exec
update vaults set deleted_at = now(), description = '', metadata = '{}' where tenant_id = app_tenant() and id = @id;
