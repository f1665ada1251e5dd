-- name: DeleteSetupSteps :exec
delete from setup_steps where tenant_id = app_tenant() and workspace_id = @workspace_id;

-- name: InsertSetupSteps :exec
insert into setup_steps (tenant_id, workspace_id, setup_id, step, position, state)
select app_tenant(), @workspace_id, @setup_id, s.step, s.position::int, 'pending'
from unnest(@steps::text[]) with ordinality s (step, position);

-- name: SetupSteps :many
select * from setup_steps where tenant_id = app_tenant() and workspace_id = @workspace_id order by position;

-- name: StartSetupStep :exec
update setup_steps set state = 'running', started_at = now()
where tenant_id = app_tenant() and workspace_id = @workspace_id and step = @step;

-- name: PrintSetupStep :exec
update setup_steps set output = @output, dropped_bytes = @dropped_bytes
where tenant_id = app_tenant() and workspace_id = @workspace_id and step = @step;

-- name: EndSetupStep :exec
update setup_steps set state = @state, note = @note, exit_code = sqlc.narg('exit_code'), signal = @signal,
    duration_ms = (extract(epoch from now() - started_at) * 1000)::bigint
where tenant_id = app_tenant() and workspace_id = @workspace_id and step = @step;
