-- name: InsertEnvironment :one
insert into environments (tenant_id, id, name, packages, env_vars, setup_script, setup_timeout_seconds, networking_type, networking_config, repositories, metadata)
values (app_tenant(), @id, @name, @packages, @env_vars, @setup_script, @setup_timeout_seconds, @networking_type, @networking_config, @repositories, @metadata)
returning created_at, updated_at;

-- name: Environment :one
select sqlc.embed(e),
    (select count(*) from secrets s where s.tenant_id = e.tenant_id and s.environment_id = e.id)::int as secret_count,
    (select count(*) from agents a where a.tenant_id = e.tenant_id and a.environment_id = e.id)::int as agent_count
from environments e
where e.tenant_id = app_tenant() and e.id = @id and e.deleted_at is null;

-- name: Environments :many
select sqlc.embed(e),
    (select count(*) from secrets s where s.tenant_id = e.tenant_id and s.environment_id = e.id)::int as secret_count,
    (select count(*) from agents a where a.tenant_id = e.tenant_id and a.environment_id = e.id)::int as agent_count
from environments e
where e.tenant_id = app_tenant() and e.deleted_at is null and (sqlc.narg('after')::text is null or e.name > sqlc.narg('after'))
order by e.name limit @at_most;

-- name: EnvironmentsByID :many
select * from environments where tenant_id = app_tenant() and id = any(@ids::uuid[]);

-- name: LockEnvironment :one
select id from environments where tenant_id = app_tenant() and id = @id and deleted_at is null for update;

-- name: HoldEnvironment :one
-- Keeps the environment from being deleted until the transaction that refers to it ends.
select id from environments where tenant_id = app_tenant() and id = @id and deleted_at is null for key share;

-- name: UpdateEnvironment :one
update environments set name = @name, packages = @packages, env_vars = @env_vars, setup_script = @setup_script,
    setup_timeout_seconds = @setup_timeout_seconds, networking_type = @networking_type, networking_config = @networking_config,
    repositories = @repositories, metadata = @metadata, updated_at = now()
where tenant_id = app_tenant() and id = @id and deleted_at is null
returning updated_at;

-- name: DeleteEnvironment :exec
-- Nothing of it stays but its id and its name, for the workspaces that were made from it.
update environments set deleted_at = now(), packages = '{}', env_vars = '{}', setup_script = '', networking_config = '{}',
    repositories = '[]', metadata = '{}'
where tenant_id = app_tenant() and id = @id;

-- name: AgentsOfEnvironment :many
select id, name from agents where tenant_id = app_tenant() and environment_id = @environment_id::uuid order by name limit @at_most;

-- name: WorkspacesOfSource :many
-- Workspaces that were made from an environment, or from a vault, and are not deleted yet.
select id, name, implicit from workspaces
where tenant_id = app_tenant() and status <> 'deleted' and (environment_id = sqlc.narg('environment_id') or vault_id = sqlc.narg('vault_id'))
order by implicit, name limit @at_most;
