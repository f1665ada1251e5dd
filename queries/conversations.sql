-- name: InsertConversation :exec
insert into conversations (tenant_id, id, agent_id, agent_version, workspace_id, title, title_source, runtime, model, cwd, permission_policy,
    labels, sandbox_api_access, source, parent_id, inference_credential_id, credential_revision, created_by)
values (app_tenant(), @id, @agent_id, @agent_version, @workspace_id, @title, @title_source, @runtime, @model, @cwd, @permission_policy,
    @labels, @sandbox_api_access, @source, sqlc.narg('parent_id'), sqlc.narg('inference_credential_id'), @credential_revision, @created_by);

-- name: InsertConversationHead :exec
insert into conversation_heads (tenant_id, conversation_id) values (app_tenant(), @conversation_id);

-- name: Conversation :one
select sqlc.embed(c), sqlc.embed(w), coalesce(a.name, '')::text as agent_name,
    coalesce((select t.prompt from turns t where t.tenant_id = c.tenant_id and t.conversation_id = c.id order by t.turn_number limit 1), '')::text as first_prompt
from conversations c
join workspaces w on w.tenant_id = c.tenant_id and w.id = c.workspace_id
left join agents a on a.tenant_id = c.tenant_id and a.id = c.agent_id
where c.tenant_id = app_tenant() and c.id = @id and c.hidden_at is null;

-- name: Conversations :many
-- Newest activity first. The cursor is the (last_active_at, id) of the last one of the page before.
select sqlc.embed(c), sqlc.embed(w), coalesce(a.name, '')::text as agent_name,
    coalesce((select t.prompt from turns t where t.tenant_id = c.tenant_id and t.conversation_id = c.id order by t.turn_number limit 1), '')::text as first_prompt
from conversations c
join workspaces w on w.tenant_id = c.tenant_id and w.id = c.workspace_id
left join agents a on a.tenant_id = c.tenant_id and a.id = c.agent_id
where c.tenant_id = app_tenant() and c.hidden_at is null
  and (sqlc.narg('status')::text is null or c.status = sqlc.narg('status'))
  and (sqlc.narg('agent_id')::uuid is null or c.agent_id = sqlc.narg('agent_id'))
  and (sqlc.narg('workspace_id')::uuid is null or c.workspace_id = sqlc.narg('workspace_id'))
  and (sqlc.narg('labels')::jsonb is null or c.labels @> sqlc.narg('labels'))
  and (sqlc.narg('text')::text is null
       or strpos(lower(c.title), lower(sqlc.narg('text'))) > 0
       or exists (select 1 from turns t where t.tenant_id = c.tenant_id and t.conversation_id = c.id and strpos(lower(t.prompt), lower(sqlc.narg('text'))) > 0))
  and (sqlc.narg('before')::timestamptz is null or (c.last_active_at, c.id) < (sqlc.narg('before'), sqlc.narg('before_id')::uuid))
order by c.last_active_at desc, c.id desc
limit @at_most;

-- name: LockConversation :one
select * from conversations where tenant_id = app_tenant() and id = @id and hidden_at is null for update;

-- name: LockConversationAlways :one
-- Also one that a person deleted: what ends it must still finish.
select * from conversations where tenant_id = app_tenant() and id = @id for update;

-- name: UpdateConversation :exec
update conversations set title = @title, title_source = @title_source, labels = @labels, updated_at = now()
where tenant_id = app_tenant() and id = @id;

-- name: TitleByAgent :execrows
-- A title that a person set stays.
update conversations set title = @title, title_source = 'agent', updated_at = now()
where tenant_id = app_tenant() and id = @id and title_source <> 'person' and title <> @title;

-- name: MarkConversationRead :execrows
update conversations set last_read_at = now() where tenant_id = app_tenant() and id = @id and hidden_at is null;

-- name: RequireBound :exec
-- Refuses the transaction (db.Fenced: credential) when what the conversation is bound to is not there any more, or not as it was.
select fence('credential', exists (
    select from conversations c
    left join inference_credentials i on i.tenant_id = c.tenant_id and i.id = c.inference_credential_id and i.revision = c.credential_revision
    where c.tenant_id = app_tenant() and c.id = @id::uuid and (c.inference_credential_id is null or i.id is not null)));

-- name: CountTurn :exec
update conversations set turn_count = @turn_number, title = case when title = '' then @title::text else title end,
    status = case when @sent::bool then 'running' else status end, last_active_at = now(), updated_at = now()
where tenant_id = app_tenant() and id = @id;

-- name: SetConversationStatus :exec
-- A terminal status stays.
update conversations set status = @status, last_active_at = now(), updated_at = now()
where tenant_id = app_tenant() and id = @id and status not in ('failed', 'terminated');

-- name: FailConversation :execrows
update conversations set status = 'failed', error = @error, ended_at = now(), last_active_at = now(), updated_at = now()
where tenant_id = app_tenant() and id = @id and status not in ('failed', 'terminated');

-- name: TerminateConversation :execrows
update conversations set status = 'terminated', ended_at = now(), last_active_at = now(), updated_at = now()
where tenant_id = app_tenant() and id = @id and status not in ('failed', 'terminated');

-- name: HideConversation :exec
update conversations set hidden_at = coalesce(hidden_at, now()), updated_at = now() where tenant_id = app_tenant() and id = @id;

-- name: SetHome :exec
-- The config home was made on this machine. A session of another machine is gone.
update conversations set home_machine_id = @machine_id, runtime_session_id = '', updated_at = now()
where tenant_id = app_tenant() and id = @id;

-- name: ClearHome :exec
update conversations set home_machine_id = null, updated_at = now() where tenant_id = app_tenant() and id = @id;

-- name: TakeRebuild :execrows
-- Notes that a conversation has a lost machine built again, unless it had one within so long.
update conversations set rebuilt_at = now(), updated_at = now()
where tenant_id = app_tenant() and id = @id and (rebuilt_at is null or rebuilt_at <= now() - make_interval(secs => @within::float8));

-- name: ForgetRebuild :exec
update conversations set rebuilt_at = null where tenant_id = app_tenant() and id = @id;

-- name: SetSession :exec
update conversations set runtime_session_id = @session, updated_at = now() where tenant_id = app_tenant() and id = @id;

-- name: SetAdapter :exec
update conversations set adapter = sqlc.narg('adapter'), updated_at = now() where tenant_id = app_tenant() and id = @id;

-- name: DisuseAdapter :exec
-- An adapter whose turn ended without it may be at that turn's prompt still: the next prompt ends it and starts another.
update conversations set adapter = jsonb_set(adapter, '{session}', 'false') where tenant_id = app_tenant() and id = @id and adapter is not null;

-- name: DropAdapter :execrows
update conversations set adapter = null, updated_at = now()
where tenant_id = app_tenant() and id = @id and adapter ->> 'exec_id' = @exec_id::text;

-- name: ConversationsWithAdapter :many
-- Those whose adapter is on a machine of a host.
select c.* from conversations c join machines m on m.tenant_id = c.tenant_id and m.id = (c.adapter ->> 'machine_id')::uuid
where c.tenant_id = app_tenant() and m.host_id = @host::uuid order by c.created_at;

-- name: LiveConversations :many
select * from conversations where tenant_id = app_tenant() and workspace_id = @workspace_id and status not in ('failed', 'terminated') order by created_at;

-- name: WorkspaceConversations :many
-- All of a workspace that have not ended, or whose adapter or home is still on a machine.
select * from conversations
where tenant_id = app_tenant() and workspace_id = @workspace_id
  and (status not in ('failed', 'terminated') or adapter is not null or home_machine_id is not null)
order by created_at;

-- name: LeftHomes :many
-- Homes of ended conversations that are still on this machine.
select id from conversations
where tenant_id = app_tenant() and workspace_id = @workspace_id and home_machine_id = @machine_id and status in ('failed', 'terminated');

-- name: ConversationCounts :many
select workspace_id, count(*)::int as n from conversations
where tenant_id = app_tenant() and workspace_id = any(@workspace_ids::uuid[]) and status not in ('failed', 'terminated') and hidden_at is null
group by workspace_id;

-- name: ConversationOfWorkspace :one
-- The conversation that an implicit workspace was made for.
select id from conversations where tenant_id = app_tenant() and workspace_id = @workspace_id order by created_at limit 1;

-- name: Family :one
-- How deep a conversation lies below the one a person started, and how many live children it has.
with recursive line as (
    select c.id, c.parent_id, 1 as depth from conversations c where c.tenant_id = app_tenant() and c.id = @id::uuid
    union all
    select p.id, p.parent_id, line.depth + 1 from line join conversations p on p.tenant_id = app_tenant() and p.id = line.parent_id)
select (max(depth) - 1)::int as depth,
    (select count(*) from conversations k where k.tenant_id = app_tenant() and k.parent_id = @id::uuid and k.status not in ('failed', 'terminated'))::int as children
from line;

-- name: SaveProgress :exec
-- How far the adapter's output was read, in the transaction of the rows that came of it. A late writer is refused
-- (db.Fenced: adapter): one whose process is not the conversation's any more, whose last write is not the one before this,
-- or whose turn is owned by another server.
with saved as (
    update conversations c set adapter = @adapter::jsonb
    where c.tenant_id = app_tenant() and c.id = @id::uuid and c.adapter ->> 'exec_id' = @exec_id::text and (c.adapter ->> 'rev')::bigint = @before::bigint
      and (sqlc.narg('operation')::uuid is null or exists (
          select 1 from operations o where o.tenant_id = c.tenant_id and o.id = sqlc.narg('operation') and o.owner = @owner::uuid
            and o.epoch = @epoch::bigint and o.state = 'running'))
    returning c.id
)
select fence('adapter', exists (select from saved));

-- name: AdapterState :one
select adapter from conversations where tenant_id = app_tenant() and id = @id;
