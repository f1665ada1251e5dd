-- name: InsertTenant :exec
insert into tenants (tenant_id, name, data_key, key_version) values ($1, $2, $3, $4);

-- name: Tenant :one
select * from tenants where tenant_id = app_tenant();

-- name: CloseTenant :execrows
-- Nobody signs in any more, and no key works.
update tenants set closed_at = now(), suspended_at = coalesce(suspended_at, now()) where tenant_id = app_tenant() and closed_at is null;

-- name: DeleteSessions :exec
delete from sessions where tenant_id = app_tenant();

-- name: RevokeKeys :exec
update api_keys set revoked_at = now() where tenant_id = app_tenant() and revoked_at is null;

-- name: LeftMachines :one
-- Machines that an account has, running or parked.
select count(*) from machines where tenant_id = app_tenant() and status in ('pending', 'starting', 'ready', 'suspended');

-- name: LeftWorkspaces :many
select id from workspaces where tenant_id = app_tenant() and status <> 'deleted' order by id;

-- Asked as the platform, when a closed account goes.

-- name: LockClosedTenant :one
select tenant_id from tenants where tenant_id = @tenant and closed_at is not null for update;

-- name: CountLeftWorkspaces :one
select count(*) from workspaces where tenant_id = @tenant and status <> 'deleted';

-- name: DeleteLoneIdentities :exec
-- People who belong to no other account.
delete from identities i where exists (select from memberships m where m.identity_id = i.id and m.tenant_id = @tenant)
    and not exists (select from memberships m where m.identity_id = i.id and m.tenant_id <> @tenant);

-- name: DeleteTenant :exec
delete from tenants where tenant_id = @tenant;
