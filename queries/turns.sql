-- name: InsertTurn :one
-- The next turn of a conversation that has not ended, which is locked. sent: it begins as it is made, and its prompt is sent
-- right away, and never again.
insert into turns (tenant_id, id, conversation_id, turn_number, prompt, asked_by, images, client_request_id, origin, model, source, credential_id, waiting_for, waiting_since,
    status, attempts, started_at, prompt_sent_at)
select c.tenant_id, @id, c.id, c.turn_count + 1, @prompt, @asked_by, @images, @client_request_id, 'user', c.model,
    case when c.inference_credential_id is null then '' else 'own' end, c.inference_credential_id, @waiting_for, now(),
    case when it.is_sent then 'running' else 'pending' end, case when it.is_sent then 1 else 0 end, case when it.is_sent then now() end, case when it.is_sent then now() end
from (select @sent::bool as is_sent) it, conversations c
where c.tenant_id = app_tenant() and c.id = @conversation_id::uuid and c.hidden_at is null and c.status not in ('failed', 'terminated')
for update of c
returning *;

-- name: RequireOnlyTurn :exec
-- Refuses the transaction (db.Fenced: idle) when another turn of the locked conversation waits or runs.
select fence('idle', not exists (
    select from turns where tenant_id = app_tenant() and conversation_id = @conversation_id::uuid and id <> @id::uuid and status in ('pending', 'running')));

-- name: Turn :one
select * from turns where tenant_id = app_tenant() and id = @id;

-- name: TurnToRun :one
-- All that a turn's worker begins with, in one round trip. Also of a conversation that a person deleted.
select sqlc.embed(t), sqlc.embed(c), v.config as agent
from turns t
join conversations c on c.tenant_id = t.tenant_id and c.id = t.conversation_id
join agent_versions v on v.tenant_id = c.tenant_id and v.agent_id = c.agent_id and v.version = c.agent_version
where t.tenant_id = app_tenant() and t.id = @id;

-- name: TurnByNumber :one
select * from turns where tenant_id = app_tenant() and conversation_id = @conversation_id and turn_number = @turn_number;

-- name: Turns :many
select * from turns
where tenant_id = app_tenant() and conversation_id = @conversation_id and (sqlc.narg('after')::int is null or turn_number > sqlc.narg('after'))
order by turn_number limit @at_most;

-- name: OpenTurns :many
select * from turns where tenant_id = app_tenant() and conversation_id = @conversation_id and status in ('pending', 'running') order by turn_number;

-- name: OpenTurnsOfConversations :many
select * from turns where tenant_id = app_tenant() and conversation_id = any(@conversation_ids::uuid[]) and status in ('pending', 'running')
order by conversation_id, turn_number;

-- name: AwayConversations :many
-- Conversations whose machine is on a host whose server is away, since when.
select c.id, h.seen_at from conversations c
join workspaces w on w.tenant_id = c.tenant_id and w.id = c.workspace_id
join machines m on m.tenant_id = w.tenant_id and m.id = w.machine_id
join hosts h on h.id = m.host_id
where c.tenant_id = app_tenant() and c.id = any(@conversation_ids::uuid[]) and m.status in ('pending', 'starting', 'ready', 'suspended') and host_away(h.id);

-- name: OpenTurnsOfWorkspace :many
-- sent: its prompt is with its agent, or on its way there.
select t.id, t.conversation_id, c.title, t.turn_number, t.status, (t.prompt_sent_at is not null)::bool as sent
from conversations c join turns t on t.tenant_id = c.tenant_id and t.conversation_id = c.id
where c.tenant_id = app_tenant() and c.workspace_id = @workspace_id and t.status in ('pending', 'running')
order by c.created_at, c.id, t.turn_number;

-- name: HoldOpenTurns :many
-- Locks the conversations of a workspace in which turns run or wait, always in the same order. The workspace is locked after them.
select c.id from conversations c
where c.tenant_id = app_tenant() and c.workspace_id = @workspace_id
  and exists (select from turns t where t.tenant_id = c.tenant_id and t.conversation_id = c.id and t.status in ('pending', 'running'))
order by c.id for update of c;

-- name: CountEndingTurns :one
-- Turns of a workspace that were asked to end and have not.
select count(*)::int from conversations c join turns t on t.tenant_id = c.tenant_id and t.conversation_id = c.id
where c.tenant_id = app_tenant() and c.workspace_id = @workspace_id and t.status = 'running' and t.interrupt_asked is not null;

-- name: UsageOfConversations :many
select conversation_id, sum(input_tokens)::bigint as input, sum(output_tokens)::bigint as output,
    sum(cache_read_tokens)::bigint as cache_read, sum(cache_write_tokens)::bigint as cache_write, sum(cost_micros)::bigint as cost_micros
from usage_entries where tenant_id = app_tenant() and conversation_id = any(@conversation_ids::uuid[])
group by conversation_id;

-- name: InsertTurnOperation :exec
-- With an owner it is claimed as it is made (epoch 1, see ClaimOperation); without one it waits for whoever claims it.
insert into operations (tenant_id, id, kind, workspace_id, conversation_id, turn_id, state, owner, epoch, lease_until, started_at)
select app_tenant(), @id::uuid, 'turn', @workspace_id::uuid, @conversation_id::uuid, @turn_id::uuid, case when owned.by is null then 'pending' else 'running' end, owned.by,
    case when owned.by is null then 0 else 1 end, case when owned.by is not null then now() + make_interval(secs => @lease::float8) end,
    case when owned.by is not null then now() end
from (select sqlc.narg('owner')::uuid as by) as owned;

-- name: InsertEndOperation :exec
-- Stops an ended conversation's adapter and removes its home.
insert into operations (tenant_id, id, kind, workspace_id, conversation_id)
values (app_tenant(), @id, 'end', @workspace_id::uuid, @conversation_id::uuid);

-- name: ClaimOperation :one
-- One server owns an operation for as long as it renews the lease; with adopt it takes back what it held before it died.
-- It is done by the host of the workspace's machine (see host_of), which has the agent and the way out. A turn waits for
-- the turns before it, a conversation's end for all its turns. The commit does not wait for the disk:
-- whatever the owner writes next does, and a claim that a crash of PostgreSQL takes back was followed by nothing.
update operations o set state = 'running', owner = @owner::uuid, epoch = o.epoch + 1, lease_until = now() + make_interval(secs => @lease::float8),
    started_at = coalesce(o.started_at, now())
from (select set_config('synchronous_commit', 'off', true)) as soon
where o.tenant_id = app_tenant() and o.id = @id and o.kind in ('turn', 'end') and o.state in ('pending', 'running')
  and (o.lease_until is null or o.lease_until < now() or (@adopt::bool and o.owner = @owner::uuid))
  and coalesce(host_of(o.tenant_id, o.kind, o.machine_id, o.workspace_id), @owner::uuid) = @owner::uuid
  and not (o.kind = 'end' and exists (
      select 1 from turns t where t.tenant_id = o.tenant_id and t.conversation_id = o.conversation_id and t.status in ('pending', 'running')))
  and not exists (
      select 1 from turns mine join turns earlier on earlier.tenant_id = mine.tenant_id and earlier.conversation_id = mine.conversation_id
      where mine.tenant_id = o.tenant_id and mine.id = o.turn_id
        and earlier.turn_number < mine.turn_number and earlier.status in ('pending', 'running'))
returning o.*;

-- name: RenewOperation :one
-- Also tells what a person asked meanwhile.
update operations o set lease_until = now() + make_interval(secs => @lease::float8)
where o.tenant_id = app_tenant() and o.id = @id and o.owner = @owner::uuid and o.epoch = @epoch and o.state = 'running'
returning coalesce((select t.interrupt_asked is not null from turns t where t.tenant_id = o.tenant_id and t.id = o.turn_id), false)::bool as interrupt_asked;

-- name: ReleaseOperation :exec
-- Lets another server take it at once.
update operations set lease_until = null
where tenant_id = app_tenant() and id = @id and owner = @owner::uuid and epoch = @epoch and state = 'running';

-- name: EndOperation :execrows
update operations set state = @state, lease_until = null, ended_at = now()
where tenant_id = app_tenant() and id = @id and owner = @owner::uuid and epoch = @epoch and state = 'running';

-- name: CancelTurnOperation :execrows
update operations set state = 'cancelled', lease_until = null, ended_at = now()
where tenant_id = app_tenant() and turn_id = @turn_id::uuid and kind = 'turn' and state in ('pending', 'running');

-- name: OperationOfTurn :one
select id from operations where tenant_id = app_tenant() and turn_id = @turn_id::uuid and kind = 'turn' and state in ('pending', 'running');

-- name: NextOperations :many
-- What a conversation still has to do, in order.
select id from operations
where tenant_id = app_tenant() and conversation_id = @conversation_id::uuid and kind in ('turn', 'end') and state = 'pending'
order by created_at, id;

-- name: HoldConversation :exec
-- Refuses the transaction (db.Fenced: operation) unless the owner still holds the operation, and holds it and its
-- conversation, which is locked before it, until the transaction ends: the first statement of everything that an owner
-- writes. Also of a conversation that a person deleted: what ends it must still finish.
with c as materialized (
    select tenant_id, id from conversations where tenant_id = app_tenant() and id = @conversation_id::uuid for update
), held as materialized (
    select o.id from c
    join operations o on o.tenant_id = c.tenant_id and o.conversation_id = c.id
    where o.id = @id::uuid and o.owner = @owner::uuid and o.epoch = @epoch::bigint and o.state = 'running'
    for share of o
)
select fence('operation', exists (select from held));

-- name: OperationState :one
select state from operations where tenant_id = app_tenant() and id = @id;

-- name: StartTurn :exec
-- Its first attempt begins with it. sent: its prompt is sent right away, and never again. A turn that does not wait any more
-- refuses the transaction (db.Fenced: turn).
with started as (
    update turns set status = 'running', attempts = attempts + 1, started_at = coalesce(started_at, now()),
        waiting_for = @waiting_for, waiting_since = now(), prompt_sent_at = case when @sent::bool then now() end
    where tenant_id = app_tenant() and id = @id::uuid and status = 'pending'
    returning id
)
select fence('turn', exists (select from started));

-- name: TurnWaits :exec
update turns set waiting_for = @waiting_for, waiting_since = case when @waiting_for = '' then null else now() end
where tenant_id = app_tenant() and id = @id and status = 'running' and waiting_for <> @waiting_for;

-- name: TurnAttempt :one
update turns set attempts = attempts + 1 where tenant_id = app_tenant() and id = @id and status = 'running' returning attempts;

-- name: PromptSent :execrows
-- Written before the prompt is: a turn that has it is never sent again.
update turns set prompt_sent_at = now(), waiting_for = 'model', waiting_since = now()
where tenant_id = app_tenant() and id = @id and status = 'running' and prompt_sent_at is null;

-- name: FirstToken :exec
update turns set first_token_at = coalesce(first_token_at, now()), waiting_for = '', waiting_since = null
where tenant_id = app_tenant() and id = @id and status = 'running';

-- name: AskInterrupt :one
-- reason: why, when no person asks. The first one to ask is the reason.
update turns set interrupt_asked = coalesce(interrupt_asked, now()), reason = case when interrupt_asked is null then @reason else reason end
where tenant_id = app_tenant() and id = @id and status = 'running'
returning *;

-- name: WhyInterrupted :one
-- What its interrupt was asked for, and what its conversation is in now.
select t.reason, c.status from turns t
join conversations c on c.tenant_id = t.tenant_id and c.id = t.conversation_id
where t.tenant_id = app_tenant() and t.id = @id;

-- name: TurnsOnMachine :many
-- Turns of a workspace that have, or may have, something on its machine. One that has not sent its prompt and waits for the
-- machine has nothing on it; one that is about to begin may have seen it up.
select t.id, t.conversation_id, (t.interrupt_asked is not null)::bool as asked
from conversations c join turns t on t.tenant_id = c.tenant_id and t.conversation_id = c.id
where c.tenant_id = app_tenant() and c.workspace_id = @workspace_id
  and (t.status = 'running' and not (t.prompt_sent_at is null and (t.waiting_for = 'machine' or t.waiting_for like 'machine:%'))
    or t.status = 'pending' and exists (
        select from operations o where o.tenant_id = t.tenant_id and o.turn_id = t.id and o.kind = 'turn' and o.state = 'running'));

-- name: EndTurn :one
update turns set status = @status, stop_reason = @stop_reason, reason = @reason, error = sqlc.narg('error'), exit_code = sqlc.narg('exit_code'),
    model = case when @model::text = '' then model else @model end, usage = @usage, waiting_for = '', waiting_since = null, ended_at = now(),
    tool_call_count = (select count(*) from tool_calls tc where tc.tenant_id = turns.tenant_id and tc.conversation_id = turns.conversation_id and tc.turn_id = turns.id)
where turns.tenant_id = app_tenant() and turns.id = @id and turns.status in ('pending', 'running')
returning *;

-- name: SetTurnUsage :exec
update turns set usage = @usage where tenant_id = app_tenant() and id = @id;

-- name: OpenToolCalls :many
select * from tool_calls where tenant_id = app_tenant() and conversation_id = @conversation_id and turn_id = @turn_id and status in ('pending', 'running')
order by first_seq;

-- name: InsertPermissionRequest :exec
insert into permission_requests (tenant_id, id, conversation_id, turn_id, tool_call_id, tool, options, status, outcome, option_id, answered_by, resolved_at)
values (app_tenant(), @id, @conversation_id, @turn_id, @tool_call_id, @tool, @options, @status, @outcome, @option_id, @answered_by, sqlc.narg('resolved_at'));

-- name: ResolvePermissionRequests :many
-- Every open request of a turn gets this outcome.
update permission_requests set status = 'resolved', outcome = @outcome, answered_by = @answered_by, resolved_at = now()
where tenant_id = app_tenant() and turn_id = @turn_id and status = 'open'
returning *;

-- name: PermissionRequest :one
select * from permission_requests where tenant_id = app_tenant() and id = @id and conversation_id = @conversation_id;

-- name: OpenPermissionRequests :many
select * from permission_requests where tenant_id = app_tenant() and conversation_id = @conversation_id and status = 'open' order by created_at;
