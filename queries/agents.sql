-- name: InsertAgent :one
insert into agents (tenant_id, id, name, environment_id) values (app_tenant(), @id, @name, sqlc.narg('environment_id'))
returning created_at, updated_at;

-- name: InsertAgentVersion :one
insert into agent_versions (tenant_id, agent_id, version, config, created_by) values (app_tenant(), @agent_id, @version, @config, @created_by)
returning created_at;

-- name: Agent :one
select sqlc.embed(a), v.config,
    (select count(*) from conversations c where c.tenant_id = a.tenant_id and c.agent_id = a.id)::int as conversation_count
from agents a
join agent_versions v on v.tenant_id = a.tenant_id and v.agent_id = a.id and v.version = a.version
where a.tenant_id = app_tenant() and a.id = @id;

-- name: Agents :many
select sqlc.embed(a), v.config,
    (select count(*) from conversations c where c.tenant_id = a.tenant_id and c.agent_id = a.id)::int as conversation_count
from agents a
join agent_versions v on v.tenant_id = a.tenant_id and v.agent_id = a.id and v.version = a.version
where a.tenant_id = app_tenant() and (sqlc.narg('after')::text is null or a.name > sqlc.narg('after'))
order by a.name limit @at_most;

-- name: LockAgent :one
select version from agents where tenant_id = app_tenant() and id = @id for update;

-- name: UpdateAgent :one
update agents set name = @name, environment_id = sqlc.narg('environment_id'), version = sqlc.arg('version')::int, updated_at = now()
where tenant_id = app_tenant() and id = @id and version = sqlc.arg('version')::int - 1
returning updated_at;

-- name: DeleteAgent :execrows
delete from agents where tenant_id = app_tenant() and id = @id;

-- name: AgentVersions :many
select * from agent_versions
where tenant_id = app_tenant() and agent_id = @agent_id and (sqlc.narg('before')::int is null or version < sqlc.narg('before'))
order by version desc limit @at_most;

-- name: AgentVersion :one
select * from agent_versions where tenant_id = app_tenant() and agent_id = @agent_id and version = @version;
