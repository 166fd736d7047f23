package server

// routes calls route for each route of the API, with its action: see [access].
func (s *Server) routes(route func(pattern string, handle handler, do action)) {
	const stack = "/api/stacks/{org}/{project}/{stack}"
	const pools = "/api/orgs/{org}/agent-pools"
	const activities = pools + "/{pool}/activities" // extension: see the package comment
	const leases = "/api/background-activities/worker/lease"

	// Calls of balancers.
	route("GET /api/status", s.status, answerAnyone)
	route("GET /healthz", s.healthz, answerAnyone)

	// Calls of users. Programs in jobs may make some of these calls, too.
	route("GET /api/capabilities", s.capabilities, answerAnyone)
	route("GET /api/openapi/pulumi-spec.json", s.openAPI, answerAnyone)
	route("GET /api/cli/version", s.cliVersion, answerAnyone)
	route("GET /api/user", s.user, readSelf)
	route("GET /api/user/organizations/default", s.defaultOrganization, readSelf)
	route("GET /api/user/stacks", s.listUserStacks, listStacks)
	route("GET /api/user/tokens", s.listUserTokens, manageSelf)
	route("POST /api/user/tokens", s.createUserToken, manageSelf)
	route("DELETE /api/user/tokens/{id}", s.deleteUserToken, manageSelf)

	route("PATCH /api/orgs/{org}", s.editOrganization, administer)
	route("GET /api/orgs/{org}/tokens", s.listOrganizationTokens, administer)
	route("POST /api/orgs/{org}/tokens", s.createOrganizationToken, administerTokens)
	route("DELETE /api/orgs/{org}/tokens/{id}", s.deleteOrganizationToken, administerTokens)

	route("GET "+pools, s.listPools, readOrganization)
	route("POST "+pools, s.createPool, administer)
	route("GET "+pools+"/{pool}", s.getPool, readOrganization)
	route("PATCH "+pools+"/{pool}", s.editPool, administer)
	route("DELETE "+pools+"/{pool}", s.deletePool, administer)
	route("POST "+pools+"/{pool}/tokens", s.createPoolToken, administer) // extension: see the package comment

	route("GET "+activities, s.listActivities, readOrganization)
	route("POST "+activities, s.createActivity, administer)
	route("GET "+activities+"/{id}", s.getActivity, readOrganization)
	route("GET "+activities+"/{id}/logs", s.getActivityLogs, readOrganization)
	route("POST "+activities+"/{id}/cancel", s.cancelActivity, administer)

	route("POST /api/stacks/{org}/{project}", s.createStack, createStacks)
	route("GET /api/stacks/{org}/{project}", s.projectExists, readOrganization)
	route("GET "+stack, s.getStack, readStack)
	route("DELETE "+stack, s.deleteStack, changeStack)
	route("POST "+stack+"/rename", s.renameStack, changeStack)
	route("PATCH "+stack+"/tags", s.updateStackTags, changeStack)
	route("POST "+stack+"/tags", s.addStackTag, changeStack)
	route("PATCH "+stack+"/tags/{tag}", s.updateStackTag, changeStack)
	route("DELETE "+stack+"/tags/{tag}", s.deleteStackTag, changeStack)
	route("GET "+stack+"/updates", s.listHistory, readStack)
	route("GET "+stack+"/updates/latest", s.getLatestUpdate, readStack)
	route("GET "+stack+"/updates/latest/previews", s.listPreviews, readStack)
	route("GET "+stack+"/updates/{version}", s.getPastUpdate, readStack)
	route("GET "+stack+"/updates/{version}/summary", s.getUpdateSummary, readStack)
	route("GET "+stack+"/previews/{id}", s.getPreview, readStack)
	route("GET "+stack+"/resources/count", s.countResources, readStack)
	route("GET "+stack+"/resources/{version}", s.listResources, readStack)
	route("GET "+stack+"/config", s.getStackConfig, readStack)
	route("PUT "+stack+"/config", s.putStackConfig, changeStack)
	route("DELETE "+stack+"/config", s.deleteStackConfig, changeStack)

	route("POST "+stack+"/encrypt", s.encryptValue, changeStack)
	route("POST "+stack+"/batch-encrypt", s.encryptValues, changeStack)
	route("POST "+stack+"/decrypt", s.decryptValue, readStack)
	route("POST "+stack+"/batch-decrypt", s.decryptValues, readStack)
	route("POST "+stack+"/decrypt/log-decryption", s.noteDecryption, readStack)
	route("POST "+stack+"/decrypt/log-batch-decryption", s.noteDecryption, readStack)

	for _, kind := range updateKinds() {
		route("POST "+stack+"/"+kind, s.createUpdate(kind), changeStack)
		update := stack + "/" + kind + "/{update}"
		route("POST "+update, s.startUpdate, changeStack)
		route("GET "+update, s.getUpdate, readStack)
		route("GET "+update+"/events", s.getEvents, readStack)
		route("POST "+update+"/cancel", s.cancelUpdate, changeStack)
		route("POST "+update+"/renew_lease", s.renewUpdate, holdUpdate)
		route("PATCH "+update+"/checkpoint", s.saveCheckpoint, holdUpdate)
		route("PATCH "+update+"/journalentries", s.saveJournal, holdUpdate)
		route("POST "+update+"/events/batch", s.saveEvents, holdUpdate)
		route("POST "+update+"/complete", s.completeUpdate, holdUpdate)
	}
	route("GET "+stack+"/export", s.exportStack, readStack)
	route("GET "+stack+"/export/{version}", s.exportStack, readStack)
	route("POST "+stack+"/import", s.importStack, changeStack)

	route("GET "+stack+"/deployments/settings", s.getSettings, deploy)
	route("POST "+stack+"/deployments/settings", s.patchSettings, deploy)
	route("PUT "+stack+"/deployments/settings", s.putSettings, deploy)
	route("DELETE "+stack+"/deployments/settings", s.deleteSettings, deploy)
	route("POST "+stack+"/deployments/settings/encrypt", s.encryptSetting, deploy)

	route("POST "+stack+"/deployments", s.createDeployment, deploy)
	route("GET "+stack+"/deployments", s.listDeployments, deploy)
	route("GET "+stack+"/deployments/{id}", s.getDeployment, deploy)
	route("GET "+stack+"/deployments/{id}/{part}", s.getDeploymentPart, deploy)
	route("POST "+stack+"/deployments/{id}/cancel", s.cancelDeployment, deploy)

	route("POST "+stack+"/deployments/pause", s.pauseStack(true), deploy)
	route("POST "+stack+"/deployments/resume", s.pauseStack(false), deploy)
	route("GET "+stack+"/deployments/metadata", s.stackQueue, deploy)

	route("GET /api/orgs/{org}/deployments", s.listQueue, readOrganization)
	route("GET /api/orgs/{org}/deployments/metadata", s.queueMetadata, readOrganization)
	route("POST /api/orgs/{org}/deployments/pause", s.pauseOrganization(true), administer)
	route("POST /api/orgs/{org}/deployments/resume", s.pauseOrganization(false), administer)

	// Calls of agents.
	route("GET /api/deployments/poll", s.poll, serveAgent)
	route("GET /api/deployments/{id}/status", s.deploymentStatus, serveAgent)
	route("POST /api/agent-workflows/{type}", s.acknowledge, serveAgent)
	route("POST /api/agent-workflows/{subject}/check", s.check, serveAgent)
	route("GET /api/background-activities/token", s.workerToken, serveAgent)
	route("POST /api/background-activities/configuration", s.workerConfiguration, serveAgent)
	route("POST "+leases+"/acquire", s.acquireLease, serveAgent)
	route("POST "+leases+"/{lease}/begin", s.beginLease, holdLease)       // extension
	route("POST "+leases+"/{lease}/renew", s.renewLease, holdLease)       // extension
	route("POST "+leases+"/{lease}/complete", s.completeLease, holdLease) // extension
	route("POST /api/oauth/token", s.exchangeToken, answerAnyone)

	// Calls of those who verify the OIDC tokens of jobs.
	route("GET "+oidcPath+"/.well-known/openid-configuration", s.oidcDiscovery, answerAnyone)
	route("GET "+oidcPath+"/.well-known/jwks", s.oidcKeys, answerAnyone)

	// Calls of runners, and of the programs of jobs.
	route("GET /api/workflow/jobs/{job}", s.definition, reportJob)
	route("PATCH /api/workflow/jobs/{job}/{step}/status", s.reportStatus, reportJob)
	route("POST /api/workflow/jobs/{job}/{step}/logs", s.reportLogs, reportJob)
	route("POST /api/workflow/jobs/{job}/heartbeat", s.heartbeat, reportJob)
	route("GET /api/deployments/executor", s.executor, readSelf)

	route("/api/", s.unknown, answerAnyone)
}

// executor returns a problem, because this service has no deployment executor to download:
// the steps of its jobs are complete scripts.
func (s *Server) executor(*call) (reply, error) {
	return reply{}, notFound("this service has no deployment executor: the steps of its jobs are complete scripts")
}
